"""Parts of a tensor by MindSpore's names; `ops` has them."""

from .primitive import primitive
from .primitive import tensor as _tensor

_MOST_OUTPUTS = 64  # of one node


def _axis(op, x, axis):
    if not -len(x.shape) <= axis < len(x.shape):
        raise ValueError(f"{op}: axis must be within the {len(x.shape)} dimensions of x, got {axis}")
    return axis % len(x.shape)


def _outputs(op, x, **attrs):
    out = primitive(op, x, **attrs)
    return out if isinstance(out, tuple) else (out,)


def equal(x, axis=0, output_num=1):
    """Equal parts of x along axis, as a tuple."""
    return _outputs("Split", _tensor(x, "split: x"), axis=axis, output_num=output_num)


def split(x, split_size_or_sections, axis=0):
    """Parts of x along axis, as a tuple: of this size each, the last of what is left; or of the sizes given."""
    x, sizes = _tensor(x, "split: x"), split_size_or_sections
    axis = _axis("split", x, axis)
    total = x.shape[axis]
    if not isinstance(total, int) and isinstance(sizes, (tuple, list)):
        return _outputs("SplitWithSize", x, split_size=list(sizes), dim=axis)
    if not isinstance(total, int):
        raise ValueError(f"split: dimension {axis} of x must not be open; ops.Split(axis, n) makes n equal parts of it")
    if isinstance(sizes, int):
        if sizes < 1:
            raise ValueError(f"split: split_size_or_sections must be at least 1, got {sizes}")
        sizes = [sizes] * (total // sizes) + [total % sizes] * (total % sizes > 0 or total == 0)
    sizes = list(sizes)
    if any(not isinstance(n, int) or n < 0 for n in sizes) or sum(sizes) != total:
        raise ValueError(f"split: split_size_or_sections must add up to {total}, dimension {axis} of x, got {sizes}")
    if len(sizes) == 1:
        return (x,)
    if len(set(sizes)) == 1 and len(sizes) <= _MOST_OUTPUTS:
        return equal(x, axis, len(sizes))
    begin, parts = 0, []
    for n in sizes:
        parts.append(x[(slice(None),) * axis + (slice(begin, begin + n),)])
        begin += n
    return tuple(parts)


def slices(x, axis=0, num=None):
    """The slices of x along axis, without this dimension, as a tuple; num: how many, where the dimension is open."""
    x = _tensor(x, "unstack: x")
    axis = _axis("unstack", x, axis)
    size = x.shape[axis]
    if num is not None:
        return _outputs("Unstack", x, axis=axis, num=num)
    if not isinstance(size, int):
        raise ValueError(
            f"unstack: dimension {axis} of x must not be open; ops.Unstack(axis, num) makes num slices of it"
        )
    if 1 < size <= _MOST_OUTPUTS:
        return _outputs("Unstack", x, axis=axis, num=size)
    return tuple(x[(slice(None),) * axis + (i,)] for i in range(size))


def unstack(input_x, axis=0):
    """The slices of input_x along axis, without this dimension, as a tuple."""
    return slices(input_x, axis)


def unbind(input, dim=0):
    """The slices of input along dim, without this dimension, as a tuple."""
    return slices(input, dim)


def cut(input_x, begin, size):
    """size[i] elements of input_x from begin[i] on along dimension i; -1 stands for all of them."""
    return primitive("Slice", _tensor(input_x, "slice: input_x"), begin=tuple(begin), size=tuple(size))


def narrow(input, axis, start, length):
    """length elements of input from start on along axis."""
    x = _tensor(input, "narrow: input")
    if length < 0:
        raise ValueError(f"narrow: length must be at least 0, got {length}")
    axis, rank = _axis("narrow", x, axis), len(x.shape)
    begin, size = [0] * rank, [-1] * rank
    begin[axis], size[axis] = start, length
    return cut(x, begin, size)


def largest(input_x, k, sorted=True):  # noqa: A002
    """The k largest elements along the last dimension, the largest first, and their places, int32."""
    return primitive("TopK", _tensor(input_x, "topk: input_x"), k=k, sorted=sorted)


def topk(input, k, dim=None, largest=True, sorted=True):  # noqa: A002
    """The k largest elements along dim (None: the last), or the smallest, in order, and their places, int32."""
    x = _tensor(input, "topk: input")
    axis, last = _axis("topk", x, -1 if dim is None else dim), len(x.shape) - 1
    turn = [last if i == axis else axis if i == last else i for i in range(last + 1)]

    def turned(t):
        return t if axis == last else primitive("Transpose", t, perm=turn)

    x = turned(x if largest else primitive("Neg", x))
    values, places = primitive("TopK", x, k=k, sorted=sorted)
    return turned(values if largest else primitive("Neg", values)), turned(places)


def triu(input, diagonal=0):
    """input on and above the diagonal of each matrix, below it 0."""
    return primitive("Triu", _tensor(input, "triu: input"), diagonal=diagonal)


def tril(input, diagonal=0):
    """input on and below the diagonal of each matrix, above it 0."""
    return primitive("Tril", _tensor(input, "tril: input"), diagonal=diagonal)
