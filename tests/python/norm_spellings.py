"""What the tests of normalisations' spellings share."""

from opgraft import ops

N = 24
# A mean of squares (n additions, n products; its root halves that), eps, root, quotient, two products; of both sides.
RMS = 2 * (N // 2 + 6)
# Means of n numbers, twice; difference, root, quotient, product, sum; of both sides.
LAYER = 2 * (2 * N + 8)


SQUARES = {"Mul": lambda x: x * x, "Square": ops.square, "Pow": lambda x: ops.pow(x, 2.0)}
ROOTS = {
    "Rsqrt": lambda x, a: x * ops.rsqrt(a),
    "Div by Sqrt": lambda x, a: x / ops.sqrt(a),
    "Mul by 1 / Sqrt": lambda x, a: x * ops.div(1.0, ops.sqrt(a)),  # as torch's exporter to ONNX writes rsqrt
    "Mul by Reciprocal of Sqrt": lambda x, a: x * ops.reciprocal(ops.sqrt(a)),
    "Pow of -0.5": lambda x, a: x * ops.pow(a, -0.5),
}


def at_rsqrt(v, g):
    return ops.rsqrt(v) * g


def keras(x, g, b, square, gained=at_rsqrt):
    m = ops.mean(x, -1, True)
    inverse = gained(ops.mean(square(x - m), -1, True) + 1e-5, g)
    return x * inverse + (b - m * inverse)


def flax(x, g, b, square, gained=at_rsqrt):
    d = x - ops.mean(x, -1, True)
    y = d * gained(ops.mean(square(d), -1, True) + 1e-5, g)
    return y if b is None else y + b


def gamma_first(x, g, b, square, root=ROOTS["Div by Sqrt"]):
    d = x - ops.mean(x, -1, True)
    y = root(g * d, ops.mean(square(d), -1, True) + 1e-5)
    return y if b is None else y + b


def inverse(x, square):
    return ops.mean(square(x), -1, True) + 1e-5


GAMMA_INSIDE = {
    "Keras": (keras, "xgb"),
    "Flax": (flax, "xgb"),
    "Flax without beta": (lambda x, g, square: flax(x, g, None, square), "xg"),
    "gamma first": (gamma_first, "xgb"),
    "gamma first, without beta": (lambda x, g, square: gamma_first(x, g, None, square), "xg"),
    "RMS, gamma at the root": (lambda x, g, square: x * (ops.rsqrt(inverse(x, square)) * g), "xg"),
    "RMS, gamma first": (lambda x, g, square: (g * x) * ops.rsqrt(inverse(x, square)), "xg"),
    "RMS, gamma first, Div": (lambda x, g, square: (x * g) / ops.sqrt(inverse(x, square)), "xg"),
}
