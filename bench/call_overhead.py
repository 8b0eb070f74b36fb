"""Time of an eager Custom call on two 4-element arrays against np.add on the same arrays."""

import argparse
import json
import statistics

import numpy as np
from opgraft import ops
from timing import interleaved

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out")
a = parser.parse_args()
x, y = np.ones(4, np.float32), np.ones(4, np.float32)
add = ops.Custom.from_op("Add")
samples = interleaved({"Custom": lambda: add(x, y), "np.add": lambda: np.add(x, y)})
ours, numpy = map(statistics.median, samples.values())
print(f"Custom {ours * 1e9:.0f} ns, np.add {numpy * 1e9:.0f} ns, ratio {ours / numpy:.2f} (at most 2)")
if a.out:
    with open(a.out, "w") as f:
        json.dump(
            {"ratios": {"Custom call / np.add": ours / numpy}, "seconds": {"Custom": ours, "np.add": numpy}},
            f,
            indent=2,
        )
