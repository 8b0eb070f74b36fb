"""What the tests of normalisations' spellings share."""

from opgraft import ops

N = 24
# A mean of squares (n additions, n products; its root halves that), eps, root, quotient, two products; of both sides.
RMS = 2 * (N // 2 + 6)
# Means of n numbers, twice; difference, root, quotient, product, sum; of both sides.
LAYER = 2 * (2 * N + 8)


SQUARES = {"Mul": lambda x: x * x, "Square": ops.square, "Pow": lambda x: ops.pow(x, 2.0)}
