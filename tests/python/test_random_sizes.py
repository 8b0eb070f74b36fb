"""Operators at sizes that nobody chose: as test_ops, seeded. They spread over the orders of magnitude, so that a cut, a
part or a strip that only some sizes have is met by some of them."""

import math

import numpy as np
import pytest
import test_ops
from conftest import make_input, tables, told
from opgraft import _core

MODULES = dict(tables())
MOST = 2e7  # multiply-adds of a case: the twin takes a few hundredths of a second
DTYPES = ("float32", "float32", "float16", "bfloat16")


class Sizes:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def spread(self, low, high):
        """low..high, as many below the geometric mean as above."""
        return int(math.exp(self.rng.uniform(math.log(low), math.log(high + 0.999))))

    def choose(self, *values):
        return values[self.rng.integers(len(values))]

    def pair(self, *values):
        one = self.choose(*values)
        return [one, self.choose(one, one, *values)]


def convolution(s):
    kernel, dilation, stride = s.pair(1, 1, 2, 3, 3, 5, 7), s.pair(1, 1, 1, 2, 3, 4, 8, 12), s.pair(1, 1, 2, 3)
    group, each, outputs = s.choose(1, 1, 1, 2, 3), s.spread(1, 600), s.spread(1, 150)
    if s.choose(*range(8)) == 0:  # depthwise
        group, each, outputs = s.spread(1, 150), 1, 1
    batch, height, width = s.choose(1, 1, 2, 3), s.spread(1, 150), s.spread(1, 150)
    mode = s.choose("same", "valid", "pad")
    pad = [s.spread(1, 12) - 1 for _ in range(4)] if mode == "pad" else [0] * 4
    for size, k, d, before, after in zip((height, width), kernel, dilation, pad[::2], pad[1::2], strict=True):
        if mode != "same" and size + before + after <= d * (k - 1):
            return None
    work = batch * (height + 12) * (width + 12) / math.prod(stride) * outputs * group * each * math.prod(kernel)
    attrs = {"pad_mode": mode, "pad": pad, "stride": [1, 1, *stride], "dilation": [1, 1, *dilation], "group": group}
    size = (batch, each * group, height, width), outputs * group, tuple(kernel), attrs
    conv = MODULES["conv"]
    return work, conv.case("Conv2D", s.choose(*DTYPES), *(conv.nhwc(*size) if s.choose(0, 0, 1) else size))


def product(s):
    m, n, k = s.spread(1, 1500), s.spread(1, 1500), s.spread(1, 3000)
    lead = tuple(s.spread(1, 3) for _ in range(s.choose(0, 0, 1, 2)))
    other = s.choose((), lead, tuple(s.choose(1, i) for i in lead))
    turned = s.choose(False, True), s.choose(False, True)
    op = "BatchMatMul" if other or (lead and turned[0]) else "MatMul"
    case = MODULES["matmul"].case(op, s.choose(*DTYPES), lead, other, m, n, k, *turned)
    return math.prod(lead) * m * n * k, case | {"constant": [s.choose(0, 1)]}


def layer(s):
    """A layer, or several of one x; any of the weights may be constants."""
    op = s.choose("Dense", "DenseAdd", "DenseQKV", "DenseSwiGLU")
    m, n, k, turned = s.spread(1, 2000), s.spread(1, 1500), s.spread(1, 1500), s.choose(False, True)
    dtype, biased, dense = s.choose(*DTYPES), s.choose(False, True), MODULES["dense"]
    weights = {"DenseQKV": 3, "DenseSwiGLU": 2}.get(op, 1)
    if weights > 1:
        columns = (n, s.spread(1, n), s.spread(1, n)) if weights == 3 else (n, n)
        case = dense.joint(dtype, (m,), k, columns, biased, turned)
    else:
        inputs = 4 if op == "DenseAdd" else 2 + biased
        case = dense.case(op, dtype, (m,), k, n, inputs, turned, s.choose("none", *dense.ACTIVATIONS))
    constant = [i for i in range(1, 1 + weights) if s.choose(False, True, True)]
    return weights * m * n * k, case | {"constant": constant}


def of_eight_bits(s):
    m, n, k, turned = s.spread(1, 1500), s.spread(1, 1500), s.spread(1, 2000), s.choose(False, True)
    quant = MODULES["quant"]
    if s.choose(False, True):
        case = quant.quant_case(s.choose("float16", "bfloat16", "float32", "int8"), (m,), k, n, tb=turned)
    else:
        case = quant.weight_case(
            s.choose(*DTYPES), (m,), k, n, s.choose(3, 4, 7), tw=turned, of=s.choose(("int8", -128), ("uint8", 0))
        )
    return m * n * k, case | {"constant": [i for i in (1,) if s.choose(False, True)]}


def attention(s):
    shared, heads = s.choose(1, 1, 2, 4), s.spread(1, 6)
    size = s.spread(1, 3), heads * shared, s.spread(1, 400), s.spread(1, 900), s.spread(1, 200)
    causal = bool(s.choose(0, 1)) and size[2] <= size[3]
    masks = [(s.choose(1, size[0]), s.choose(1, size[1]), size[2], size[3])] if s.choose(0, 0, 1) else []
    more = {"shared": shared, "is_causal": causal, "value_dim": s.choose(None, None, s.spread(1, 200))}
    return 2 * math.prod(size), MODULES["attention"].case(
        s.choose(*DTYPES), size, s.choose("BHSD", "BSE"), *masks, **more
    )


def pool(s):
    op, x = s.choose("MaxPool", "AvgPool"), (s.spread(1, 3), s.spread(1, 300), s.spread(1, 150), s.spread(1, 150))
    kernel, strides, mode = s.pair(1, 2, 3, 5, 7), s.pair(1, 2, 3), s.choose("SAME", "VALID")
    if mode == "VALID" and (x[2] < kernel[0] or x[3] < kernel[1]):
        return None
    work = 10 * math.prod(x) * math.prod(kernel) / math.prod(strides)
    return work, MODULES["pool"].case(op, s.choose(*DTYPES), x, kernel, strides, mode, last=bool(s.choose(0, 1)))


def zeros_and_ones(s, rows, columns):
    """Where a matrix is not 0: anywhere, in some rows more than in others, in blocks, or in a few full rows."""
    density = math.exp(s.rng.uniform(math.log(0.002), 0))
    kind = s.choose("anywhere", "anywhere", "rows", "blocks", "full rows")
    if kind == "blocks":
        size = s.choose(4, 16, 30)
        coarse = s.rng.random((rows // size + 1, columns // size + 1)) < density
        return np.kron(coarse, np.ones((size, size), bool))[:rows, :columns]
    share = {"anywhere": np.full(rows, density), "rows": density * s.rng.pareto(1.0, rows)}
    share["full rows"] = np.where(s.rng.random(rows) < density, 1.0, 0.01)
    return s.rng.random((rows, columns)) < share[kind][:, None]


def sparse(s):
    """A sparse matrix S, n by k, times D^T or D, k by m: by its zeros, and by indices."""
    m, n, k, dtype = s.spread(1, 1500), s.spread(1, 1500), s.spread(1, 2000), s.choose(*DTYPES)
    a = np.where(zeros_and_ones(s, n, k), s.rng.standard_normal((n, k)), 0).astype(np.float32)
    turned, other = s.choose(False, True), s.choose(False, True)
    op = s.choose("SparseMatMul", "SparseMatMulGrad", "SparseDense", "CSRMM", "SparseTensorDenseMatmul")
    y, of = (dtype, (n, m)), MODULES["sparse"]
    if op == "SparseDense":
        weight, bias = (dtype, a if turned else a.T), [(dtype, (n,))][: s.choose(0, 1)]
        attrs = {"transpose_b": turned, "activation": s.choose(*of.ACTIVATIONS)}
        case = of.case(op, dtype, [(dtype, (m, k)), weight, *bias], **attrs)
    elif op.startswith("SparseMatMul"):
        attrs = {"transpose_a": turned, "transpose_b": other, "a_is_sparse": bool(s.choose(0, 1))}
        if attrs["a_is_sparse"]:
            both = [(dtype, a.T if turned else a), (dtype, (m, k) if other else (k, m))]
        else:
            both, y = [(dtype, (k, m) if turned else (m, k)), (dtype, a if other else a.T)], (dtype, (m, n))
        case = of.case(op, dtype, [*both, y][: 3 if op.endswith("Grad") else 2], **attrs)
    else:
        at, index = np.argwhere(a), s.choose("int32", "int64")
        values, shape = (dtype, a[a != 0]), ("int64", [n, k])
        if op == "CSRMM":
            arrays = [(index, np.append(0, np.count_nonzero(a, 1).cumsum())), (index, at[:, 1]), values]
            case = of.case(op, dtype, [*arrays, shape, (dtype, (k, m))])
        else:
            case = of.case(op, dtype, [(index, at), values, shape, (dtype, (k, m))])
    return m * np.count_nonzero(a) + n * k, case


MAKE = {
    "conv": convolution,
    "matmul": product,
    "dense": layer,
    "quant": of_eight_bits,
    "attention": attention,
    "pool": pool,
    "sparse": sparse,
}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("folder", MAKE)
def test_sizes_that_nobody_chose(folder, seed):
    s, left = Sizes([seed, *folder.encode()]), 25
    while left:
        made = MAKE[folder](s)
        if made is None or made[0] > MOST:
            continue
        left -= 1
        with told(made[1]):
            test_ops.test_case(folder, MODULES[folder], made[1])


def resized(s, case, kept):
    """A case of the tables with other sizes: equal ones stay equal, 1 and the kept ones as they are, twice another one
    twice it. None where values of an input or of an attribute go with them."""
    if any(not isinstance(i[1], tuple) for i in case["inputs"]) or "normalized_shape" in case.get("attrs", {}):
        return None
    sizes, most = {n: n for n in (0, 1, *kept)}, s.choose(9, 70, 600, 5000)
    for n in sorted({n for i in case["inputs"] for n in i[1]}):
        if n not in sizes:
            other = s.spread(1, most) * (2 if n % 2 == 0 else 1)
            sizes[n] = 2 * sizes[n // 2] if n % 2 == 0 and n > 2 and n // 2 in sizes else other
    inputs = [(i[0], tuple(sizes[n] for n in i[1]), *i[2:]) for i in case["inputs"]]
    return case | {"inputs": inputs}


RESIZED = (
    "activation_grad batch_norm bias_add dynamic_quant elementwise fake_quant gelu layernorm layernorm2d log_softmax "
    "reduce rmsnorm rope sepia softmax swiglu topk"
).split()
CHANNELS = {"sepia": (3,)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("folder", RESIZED)
def test_cases_at_sizes_that_nobody_chose(folder, seed):
    s, cases, left, refused = Sizes([seed, *folder.encode()]), MODULES[folder].CASES, 20, 0
    while left:
        case = resized(s, cases[s.rng.integers(len(cases))], CHANNELS.get(folder, ()))
        if case is None or sum(math.prod(i[1]) for i in case["inputs"]) > 3e5:
            continue
        inputs = [make_input(spec, k) for k, spec in enumerate(case["inputs"])]
        try:
            _core.infer_op(_core.resolve(case["op"]), inputs, case.get("attrs", {}))
        except ValueError as e:  # sizes that do not go together
            refused += 1
            assert refused < 100, e
            continue
        with told(case):
            test_ops.test_case(folder, MODULES[folder], case)
        left -= 1
