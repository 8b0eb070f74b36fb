"""Einstein's summation convention as Transpose, Reshape and products of matrices; `ops` has it."""

import math
import string

from .primitive import primitive
from .primitive import tensor as _tensor


def _parse(equation, ranks):
    """The letters of each operand and of the result; those of an ellipsis are ones that the equation has not."""
    text = equation.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"einsum: equation {equation!r} must have {len(ranks)} operands, got {len(terms)}")
    unused = [c for c in string.ascii_letters if c not in text]
    dots = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks) if "..." in term]
    if len(unused) < max(dots, default=0):
        raise ValueError(f"einsum: equation {equation!r} has too many letters beside '...'")
    rest = "".join(unused[: max(dots, default=0)])  # aligned at the right, as broadcast dimensions are
    for i, (term, rank) in enumerate(zip(terms, ranks)):
        terms[i] = term.replace("...", rest[len(rest) - max(rank - len(term.replace("...", "")), 0) :])
        if len(terms[i]) != rank:
            raise ValueError(f"einsum: operand {i} must have {len(terms[i])} dimensions for {term!r}, got {rank}")
    every = "".join(terms)
    if not arrow:
        out = rest + "".join(sorted(c for c in set(every) - set(rest) if every.count(c) == 1))
    out = out.replace("...", rest)
    for term in [*terms, out]:
        if len(set(term)) != len(term) or not set(term) <= set(every) or not term.isalpha() and term:
            raise ValueError(f"einsum: equation {equation!r} must have letters, each once in a term, and no others in "
                             "the result")  # fmt: skip
    return terms, out


def _ordered(x, letters, wanted):
    wanted = "".join(wanted)
    return x if letters == wanted else primitive("Transpose", x, perm=[letters.index(c) for c in wanted])


def _summed(x, letters, keep):
    gone = [i for i, c in enumerate(letters) if c not in keep]
    x = primitive("ReduceSum", x, axis=gone, keep_dims=False) if gone else x
    return x, "".join(c for c in letters if c in keep)


def _product(x, a, y, b, keep):
    """(the product of x and y, its letters); what no operand after them nor the result asks for is summed."""
    x, a = _summed(x, a, keep | set(b))
    y, b = _summed(y, b, keep | set(a))
    batch, inner = ([c for c in a if c in b and (c in keep) == kept] for kept in (True, False))
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    size = {c: n for t, letters in ((x, a), (y, b)) for c, n in zip(letters, t.shape)}
    sizes = lambda part: tuple(size[c] for c in part)  # noqa: E731
    letters = "".join(batch + rows + columns)
    if not inner:
        x = primitive("Reshape", _ordered(x, a, batch + rows), shape=sizes(batch + rows) + (1,) * len(columns))
        y = primitive("Reshape", _ordered(y, b, batch + columns),
                      shape=sizes(batch) + (1,) * len(rows) + sizes(columns))  # fmt: skip
        return primitive("Mul", x, y), letters
    # The last dimension stays where it is, so that a Transpose moves whole rows or nothing.
    turn_a, turn_b = a[-1] in rows, b[-1] in inner
    x = _ordered(x, a, batch + (inner + rows if turn_a else rows + inner))
    y = _ordered(y, b, batch + (columns + inner if turn_b else inner + columns))
    product, turned = "BatchMatMul" if batch else "MatMul", {"transpose_a": turn_a, "transpose_b": turn_b}
    # A layer takes any number of rows; else one dimension each.
    if len(inner) == len(columns) == 1 and (len(rows) == 1 or (rows and not batch and not turn_a)):
        return primitive(product, x, y, **turned), letters
    m, k, n = (math.prod(sizes(part)) for part in (rows, inner, columns))
    if not batch and isinstance(k, int) and k > 0:  # then Reshape tells an open one by itself
        m, n = (size if isinstance(size, int) else -1 for size in (m, n))
    x = primitive("Reshape", x, shape=sizes(batch) + ((k, m) if turn_a else (m, k)))
    y = primitive("Reshape", y, shape=sizes(batch) + ((n, k) if turn_b else (k, n)))
    return primitive("Reshape", primitive(product, x, y, **turned), shape=sizes(letters)), letters


def einsum(equation, *operands):
    """The sum of products that the equation states, of one operand or more: "bqhd,bkhd->bhqk". A letter stands for a
    dimension, once in an operand; `...` for the rest. Sizes of a letter are equal: nothing is broadcast."""
    if not isinstance(equation, str):
        raise TypeError(f"einsum: equation must be a str, got {type(equation).__name__}")
    operands = [_tensor(x, f"einsum: operand {i}") for i, x in enumerate(operands)]
    terms, out = _parse(equation, [len(x.shape) for x in operands])
    sizes = {}
    for i, (x, letters) in enumerate(zip(operands, terms)):
        for c, n in zip(letters, x.shape):
            if isinstance(n, int) and sizes.setdefault(c, n) != n:
                raise ValueError(f"einsum: the sizes of {c!r} must be equal, got {n} of operand {i} after {sizes[c]}")
    x, letters = operands[0], terms[0]
    for i in range(1, len(operands)):
        x, letters = _product(x, letters, operands[i], terms[i], set(out).union(*terms[i + 1 :]))
    x, letters = _summed(x, letters, set(out))
    return _ordered(x, letters, out)
