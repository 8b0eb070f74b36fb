"""Run by `build.sh test --all` in a clean environment, outside the source tree: the installed wheel works.

Usage: python wheel_check.py OP_FOLDER (a copy of aot_ops/swiglu)
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import opgraft
from opgraft import ops
from opgraft.build import build

package = Path(opgraft.__file__).parent
assert "site-packages" in str(package), f"opgraft comes from {package}, not from the wheel"


def check(y, x, gate):
    np.testing.assert_allclose(np.asarray(y), x * gate / (1 + np.exp(-gate)), rtol=2e-6, atol=1e-6)


x, gate = np.random.default_rng(0).standard_normal((2, 5, 33)).astype(np.float32)
custom = ops.Custom.from_op("SwiGLU")
result = custom(opgraft.Tensor(x), opgraft.Tensor(gate))
check(result.asnumpy() if hasattr(result, "asnumpy") else result, x, gate)

listed = subprocess.run(["opgraft", "ls", "--json"], check=True, capture_output=True, text=True).stdout
assert "SwiGLU" in json.dumps(json.loads(listed)), f"opgraft ls does not list SwiGLU: {listed}"

built = build(sys.argv[1], "out")
assert built.is_file(), built
subprocess.run(["opgraft", "build", sys.argv[1]], check=True)
subprocess.run(["opgraft", "doctor", str(built)], check=True)
fresh = ops.Custom(f"{built}:SwiGLU", None, None, func_type="aot")
result = fresh(opgraft.Tensor(x), opgraft.Tensor(gate))
check(result.asnumpy() if hasattr(result, "asnumpy") else result, x, gate)
for program in ("opgraft_infer", "opgraft_generate"):
    subprocess.run([package / "bin" / program, "--help"], check=True, stdout=subprocess.DEVNULL)
print("the wheel works outside the source tree")
