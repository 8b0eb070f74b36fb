"""Time of an eager Custom call on two 4-element arrays against np.add on the same arrays."""

import argparse
import json

import numpy as np
from gate import interleaved
from opgraft import ops

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out")
a = parser.parse_args()
x, y = np.ones(4, np.float32), np.ones(4, np.float32)
add = ops.Custom.from_op("Add")
ours, numpy = interleaved(lambda: add(x, y), lambda: np.add(x, y))
print(f"Custom {ours * 1e9:.0f} ns, np.add {numpy * 1e9:.0f} ns, ratio {ours / numpy:.2f} (at most 2)")
if a.out:
    with open(a.out, "w") as f:
        json.dump(
            {"ratios": {"Custom call / np.add": ours / numpy}, "seconds": {"Custom": ours, "np.add": numpy}},
            f,
            indent=2,
        )
