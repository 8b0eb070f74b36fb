"""Cases of SampleToken; the format is that of swiglu/cases.py."""

import numpy as np


def sample(logits, uniform, temperature=1.0, top_k=0, top_p=1.0):
    out = np.zeros(uniform.shape, np.int64)
    for at in np.ndindex(*uniform.shape):
        x = logits[at]
        if temperature == 0:
            out[at] = np.argmax(x)
            continue
        weights = np.exp((x - x.max()) / temperature)
        order = np.argsort(-weights, kind="stable")
        order = order[weights[order] > 0][: top_k or None]
        p = weights[order]
        kept = 1 + int(np.searchsorted(np.cumsum(p)[:-1], top_p * p.sum()))
        p, order = p[:kept], order[:kept]
        out[at] = order[min(np.searchsorted(np.cumsum(p), uniform[at] * p.sum(), side="right"), kept - 1)]
    return out


REFERENCE = {"SampleToken": sample}


def case(logits, uniform, **attrs):
    return {"op": "SampleToken", "inputs": [logits, uniform], "attrs": attrs, "rtol": 0.0, "atol": 0.0}


ANYWHERE = (0.0, 0.999)
SETTINGS = [{}, {"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.6}, {"temperature": 0.3, "top_k": 20, "top_p": 0.9},
            {"top_k": 1}, {"top_k": 1000}, {"top_p": 1e-6}]  # fmt: skip
CASES = [case((dtype, (40, 50)), ("float32", (40,), ANYWHERE), **attrs)
         for dtype in ("float32", "float16", "bfloat16") for attrs in SETTINGS]  # fmt: skip
CASES += [case(("float32", (*shape, 50)), ("float32", shape, ANYWHERE)) for shape in [(), (0,), (2, 3)]]
TWO = ("float32", [[1.0, 3.0, 3.0, 2.0]])  # that are equal
CASES += [case(TWO, ("float32", [u]), **attrs) for u, attrs in
          [(0.0, {"temperature": 0.0}), (0.0, {"top_k": 1}), (0.49, {"top_k": 2}), (0.51, {"top_k": 2})]]  # fmt: skip
CASES += [case(("float32", [[-np.inf, 0.0, -np.inf]]), ("float32", [0.999]))]


def refused(error, shape=(2, 4), uniform=(2,), **attrs):
    return {"op": "SampleToken", "inputs": [("float32", shape), ("float32", uniform)], "attrs": attrs,
            "error": f"SampleToken: {error}"}  # fmt: skip


REFUSED = [
    refused(r"logits must have a last dimension of at least 1, got shape \(2, 0\)", (2, 0)),
    refused(r"uniform.shape must be \(2,\), got \(3,\)", uniform=(3,)),
    refused("temperature must be at least 0, got -1", temperature=-1.0),
    refused(r"top_p must be in \(0, 1\], got 0", top_p=0.0),
    refused("top_k must be at least 0, got -1", top_k=-1),
]
