"""ops.einsum against NumPy's in float64, and what a traced one becomes."""

import numpy as np
import opgraft
import pytest
from compare import Net, close, graft, normal
from opgraft import Tensor, ops

SIZE = dict(zip("abcdhijkqsxyzBSDE", (2, 3, 4, 5, 3, 6, 7, 8, 4, 5, 1, 2, 3, 2, 4, 5, 6)))
EQUATIONS = [
    "bhid,bhjd->bhij", "bhij,bhjd->bhid", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bqhd,bkhd->bqhk",  # attention
    "BSD,DE->BSE", "BSD,ED->BSE", "bsd,dhk->bshk", "bshk,hkd->bsd", "bihd,hde->bihe",  # layers
    "ij,jk->ik", "ji,jk->ik", "ij,kj->ik", "ij,kj->ki", "ij,jk", "ij,j->i", "j,jk->k", "i,i->", "i,j->ij", "ij,ij->ij",
    "ij,ij->", "ij,ij->i", "ijk,jil->kl", "abi,abj->abij", "aij,jkb->abik", "ij->ji", "ij->j", "ij->", "ij->ij", "i->i",
    "...ij,...jk->...ik", "...->", "b...d->...bd", "...ij,jk->...ik", "...i,...i", "i...,i...->...",
    "ij,jk,kd->id", "ia,ib,ic->abc", "bi,bj,ij->b", "ij,ij,j->i",
    "ba", "ij , jk -> ik",
]  # fmt: skip
SIZE["l"], SIZE["e"] = 5, 4


def operands(equation, dots=(2, 3)):
    terms = equation.replace(" ", "").split("->")[0].split(",")
    shapes = []
    for term in terms:
        before, ellipsis, after = term.partition("...")
        shapes.append(tuple(SIZE[c] for c in before) + dots * bool(ellipsis) + tuple(SIZE[c] for c in after))
    return [normal(*shape, seed=i) for i, shape in enumerate(shapes)]


def wanted(equation, given):
    """In float64, and the sum of the magnitudes that the roundings are relative to."""
    given = [a.astype(np.float64) for a in given]
    equation = "ij->" if equation == "...->" else equation  # NumPy does not take it
    return np.einsum(equation, *given), np.einsum(equation, *map(np.abs, given))


@pytest.mark.parametrize("mode", [opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE], ids=["eager", "planned"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_as_numpy(equation, mode, _eager):
    opgraft.set_context(mode=mode)
    given = operands(equation)
    got = Net(lambda *x: ops.einsum(equation, *x))(*map(Tensor, given)).asnumpy()
    want, size = wanted(equation, given)
    # As many roundings as there are terms, of products of two or three numbers.
    terms = max(np.prod([n for a in given for n in a.shape]) // max(want.size, 1), 1)
    close(got, want, min(terms, 600) + 2, size)


def test_dimensions_that_are_open():
    for equation in ("bqhd,bkhd->bhqk", "bshk,hkd->bsd", "BSD,ED->BSE"):
        net = Net(lambda *x, equation=equation: ops.einsum(equation, *x))
        first, *rest = operands(equation)
        net.set_inputs(Tensor(shape=[None, *first.shape[1:]], dtype=opgraft.float32),
                       *(Tensor(shape=[None if equation[0] == "b" and a.ndim == 4 else a.shape[0], *a.shape[1:]],
                                dtype=opgraft.float32) for a in rest))  # fmt: skip
        want, size = wanted(equation, [first, *rest])
        close(net(*map(Tensor, [first, *rest])).asnumpy(), want, 30, size)


def test_the_primitive():
    x, y = operands("ij,jk->ik")
    got = ops.Einsum("ij,jk->ik")((Tensor(x), Tensor(y))).asnumpy()
    np.testing.assert_array_equal(got, ops.matmul(Tensor(x), Tensor(y)).asnumpy())


def attention(scores, values):
    def write(q, k, v):
        return ops.einsum(values, ops.softmax(ops.einsum(scores, q, k) * 0.25), v)

    return write


@pytest.mark.parametrize("scores,values,shape", [
    ("bhid,bhjd->bhij", "bhij,bhjd->bhid", (2, 3, 5, 16)), ("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", (2, 5, 3, 16)),
])  # fmt: skip
def test_attention_is_swapped(scores, values, shape):
    q, k, v = (normal(*shape, seed=i) for i in range(3))
    swapped, before, after = graft(attention(scores, values), *map(Tensor, (q, k, v)))
    assert swapped == ["ScaledDotProductAttention"]
    # A score of 16 products, times 1/4: an error of it is one of its weight, relative. Then the exponent's 4, the sum
    # of 5 weights, a quotient, 5 products with v; on both sides.
    score = 0.25 * np.einsum(scores, np.abs(q), np.abs(k)).max()
    close(after[0], before[0], 2 * (17 * score + 4 + 5 + 1 + 5), np.abs(v).max())


@pytest.mark.parametrize("equation,shapes,message", [
    ("ij,jk->ik", [(2, 3), (4, 5)], "einsum: the sizes of 'j' must be equal, got 4 of operand 1 after 3"),
    ("ij,jk->ik", [(2, 3)], "einsum: equation 'ij,jk->ik' must have 1 operands, got 2"),
    ("ii->i", [(2, 2)], "einsum: equation 'ii->i' must have letters, each once in a term"),
    ("ij->ik", [(2, 2)], "einsum: equation 'ij->ik' must have letters, each once in a term"),
    ("i1->i", [(2, 2)], "einsum: equation 'i1->i' must have letters"),
    ("ijk->i", [(2, 2)], "einsum: operand 0 must have 3 dimensions for 'ijk', got 2"),
    ("", [], "einsum: equation '' must have 0 operands, got 1"),
])  # fmt: skip
def test_refusals(equation, shapes, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        ops.einsum(equation, *(Tensor(normal(*s)) for s in shapes))


def test_what_is_no_equation_or_tensor_is_refused():
    with pytest.raises(TypeError, match="einsum: equation must be a str, got list"):
        ops.einsum([0, 1], Tensor(normal(2, 2)))
    with pytest.raises(TypeError, match="einsum: operand 1 must be a Tensor, got int"):
        ops.einsum("ij,j->i", Tensor(normal(2, 2)), 3)
