"""Substitution by pattern: what is found, what a proof keeps, and when it takes effect."""

import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import SILU, close, linear
from opgraft import Tensor, nn, ops, rewrite

MODES = pytest.mark.parametrize("mode", [opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE])


class Gated(nn.Cell):
    def construct(self, x, gate):
        return ops.mul(ops.silu(gate), x)


class Block(nn.Cell):
    """A model that holds another."""

    def __init__(self):
        super().__init__()
        self.gated = Gated()

    def construct(self, x):
        return self.gated(x, x) + 1


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def silu(x):
    x = x.astype(np.float64)
    return x / (1 + np.exp(-x))


def grafted(program):
    return [n["op"] for n in program.graph.nodes if n["grafted"]]


def swapped(report):
    return [s["op"].split("@")[0] for s in report.swapped]


def test_proven_swap_and_its_report():
    net = Gated()
    x = normal(4, 6)
    before = net(x, x).asnumpy()
    report = rewrite.substitute(net, prove=(x, x))
    assert swapped(report) == ["SwiGLU"]
    row = report.swapped[0]
    assert 0 <= row["mean_abs"] <= row["max_abs"] < 1e-5 and row["ms_before"] > 0 and row["ms_after"] > 0
    close(net(x, x).asnumpy(), before, 2 * (SILU + 1))
    summary, header, line = str(report).splitlines()
    assert summary == "matched 1, swapped 1, left 0"
    for name in ("ms before", "ms after", "max abs"):  # numbers stand below the end of their heading
        assert line[: header.index(name) + len(name)].split()[-1][-1].isdigit()
    assert report.to_dict().keys() == {"matched", "merged", "swapped", "left"}


def test_a_line_for_each_place_left_alone_and_counts_that_add_up():
    class Layers(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w, self.b = opgraft.Parameter(normal(8, 16)), opgraft.Parameter(normal(16))
            self.gamma, self.beta = opgraft.Parameter(normal(8)), opgraft.Parameter(normal(1))

        def construct(self, x):
            d = x - ops.mean(x, -1, True)
            norm = d * ops.rsqrt(ops.mean(d * d, -1, True) + 1e-6) * self.gamma + self.beta
            return norm, ops.gelu(ops.matmul(x, self.w) + self.b, "tanh")

    net = Layers()
    report = rewrite.substitute(net)
    net(normal(4, 8))  # FusedLayerNorm takes no beta that is repeated
    lines = str(report).splitlines()
    left = [line for line in lines if line.startswith("left alone: ")]
    assert len(left) == len(report.left) == 1
    at = report.left[0]
    assert left[0] == (f"left alone: {at['node']} does not fit {at['op']}: beta.shape must be (8,), got (1,)")
    assert "[inputs: " in at["why"]
    assert report.merged > 0  # the sum became Dense and then part of Dense with its activation
    assert report.matched == len(report.swapped) + report.merged + len(report.left)
    assert f"merged into larger ones {report.merged}, left 1" in lines[0]


PROBE = """name: Probe
version: 1.0.0
inputs: [{{name: x, dtype: T}}]
outputs: [{{name: y, dtype: T}}]
attrs: [{{name: epsilon, type: float, default: 0.5}}]
dtypes: {{T: [float32]}}
replaces:
  - "Neg(Neg(x))"
  - "{}"
"""


@pytest.mark.parametrize("pattern,what", [
    ("Sqrt(Add(x, eps))", "eps must be an input of the op (x), an attribute of the op (epsilon), a label"),
    ("Sqrt(Add(x, epsilon)", "expected ',' or ')' at ''"),
    ("Sqrt(_)", "input x must be bound"),
])  # fmt: skip
def test_a_wrong_pattern_is_left_out_and_doctor_tells(tmp_path, pattern, what):
    tests = pathlib.Path(__file__).resolve().parents[1]
    yaml, so = tmp_path / "op.yaml", tmp_path / "probe.so"
    yaml.write_text(PROBE.format(pattern))
    subprocess.run(["cc", "-shared", "-fPIC", f'-DNOTE_YAML="{yaml}"', f"-DNOTE_ABI={0x10000}",
                    f"-I{tests.parent / 'include'}", tests / "bad_ops/probe.c", tests / "bad_ops/note.S", "-o", so],
                   check=True)  # fmt: skip
    code = "from opgraft import _core as c; c.rules(); print(sum(r.name == 'Probe@1.0.0' for r in c.rules()))"
    env = {**os.environ, "OPGRAFT_OPS_PATH": f"{tmp_path}:{os.environ.get('OPGRAFT_OPS_PATH', '')}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr  # the other pattern stays
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"opgraft: {so}: left out: Probe@1.0.0: pattern '{pattern}': ") and what in line
    doctor = subprocess.run([sys.executable, "-m", "opgraft.cli", "doctor", so], capture_output=True, text=True)
    assert doctor.returncode == 1
    last = doctor.stdout.splitlines()[-1]
    assert last.startswith("FAIL replaces: Probe@1.0.0: ") and what in last


def test_every_open_dimension_is_proven_at_two_sizes():
    class Mean(nn.Cell):
        def construct(self, x):
            return ops.mean(x, 1, True)

    x = normal(2, 6)
    for open_dims, count in [(None, 1), ([None, 6], 1), ([None, None], 0)]:
        net = Mean()
        if open_dims:
            net.set_inputs(Tensor(shape=open_dims, dtype=opgraft.float32))
        sixth = lambda x: ops.sum(x, 1, True) * (1 / 6)  # noqa: E731 - right where the rows are six long
        report = rewrite.substitute(net, lambda x: ops.mean(x, 1, True), sixth, prove=(x,))
        assert len(report.swapped) == count, f"{open_dims}: {report}"
        close(net(x).asnumpy(), x.mean(1, keepdims=True, dtype=np.float64), 6 + 2, np.abs(x).max())
        if not count:
            assert "instead of" in report.left[0]["why"]
            close(net(x[:, :3]).asnumpy(), x[:, :3].mean(1, keepdims=True, dtype=np.float64), 3 + 2, np.abs(x).max())


@MODES
def test_before_the_first_call_and_without_a_proof(mode):
    opgraft.set_context(mode=mode)
    net, x = Gated(), normal(2, 5)
    report = rewrite.substitute(net)
    assert report.pending and "not known yet" in str(report)
    close(net(x, x).asnumpy(), x * silu(x), SILU + 1)
    assert not report.pending and swapped(report) == ["SwiGLU"]
    assert grafted(next(iter(net._programs._exact.values()))) == ["SwiGLU"]


@MODES
@pytest.mark.parametrize("proven", [False, True])
def test_after_the_first_call(mode, proven):
    opgraft.set_context(mode=mode)
    net, x = Gated(), normal(2, 5)
    net(x, x)
    # Something that gives another result is seen to run; a proof takes what agrees only.
    double = ops.mul if proven else ops.add
    report = rewrite.substitute(
        net, lambda x, g: ops.mul(ops.silu(g), x), lambda x, g: double(x, ops.silu(g)), prove=(x, x) if proven else None
    )
    assert len(report.swapped) == 1
    close(net(x, x).asnumpy(), silu(x) * x if proven else silu(x) + x, SILU + 1, np.abs(x))


@MODES
@pytest.mark.parametrize("proven", [False, True])
def test_a_swap_in_a_cell_takes_effect_in_the_model_around_it(mode, proven):
    opgraft.set_context(mode=mode)
    net, x = Block(), normal(3, 5)
    before = net(x).asnumpy()
    report = rewrite.substitute(net.gated, prove=(x, x) if proven else None)
    close(net(x).asnumpy(), before, 2 * (SILU + 2))
    assert swapped(report) == ["SwiGLU"]
    if mode == opgraft.GRAPH_MODE:
        (program,) = net._programs._exact.values()
        assert grafted(program) == ["SwiGLU"]
        assert next(n["name"] for n in program.graph.nodes if n["grafted"]).startswith("gated/")


def test_substitutions_add_up():
    class Two(nn.Cell):
        def construct(self, x):
            return ops.tanh(ops.mul(ops.silu(x), x))

    net, x = Two(), normal(3, 4)
    rewrite.substitute(net, prove=(x,))
    rewrite.substitute(net, lambda x: ops.tanh(x), lambda x: ops.sigmoid(x * 2) * 2 - 1, prove=(x,))
    ran = [n["op"] for n in net._grafted[0][0].graph.nodes]
    assert len(net._grafted) == 1 and "SwiGLU" in ran and "Tanh" not in ran and "Sigmoid" in ran


def test_a_change_after_a_proven_swap_is_told():
    net, x = nn.SequentialCell(nn.Dense(4, 4), nn.SiLU()), normal(2, 4)
    rewrite.substitute(net, prove=(x,))
    with pytest.warns(RuntimeWarning, match="changed after rewrite.substitute"):
        net[0].weight.set_data(np.zeros((4, 4), np.float32))
    assert (net(x).asnumpy() == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 1, 3, 4)])
def test_function_patterns_fit_any_dtype_and_rank(dtype, shape):
    class Net(nn.Cell):
        def construct(self, x):
            return ops.relu(x * 0.5 + 1.0)

    x = normal(*shape, dtype=dtype)
    # The numbers of the replacement take the dtype of what was matched, so do the differently named arguments.
    report = rewrite.substitute(
        Net(), lambda x: ops.relu(x * 0.5 + 1.0), lambda t: ops.maximum((t + 2.0) * 0.5, 0.0), prove=(x,)
    )
    assert len(report.swapped) == 1, str(report)


def test_function_patterns_of_mixed_dtypes():
    class Net(nn.Cell):
        def construct(self, table, index, mask):
            return ops.select(mask, ops.gather(table, index), 0.0)

    args = normal(7, 4), np.array([3, 1]), np.array([[True], [False]])
    pattern = lambda t, i, m: ops.select(m, ops.gather(t, i), 0.0)  # noqa: E731
    report = rewrite.substitute(Net(), pattern, lambda t, i, m: ops.gather(t, i) * ops.cast(m, t.dtype), prove=args)
    assert len(report.swapped) == 1, str(report)


def test_function_patterns_that_depend_on_rank():
    class Net(nn.Cell):
        def construct(self, x):
            return ops.relu(x.transpose())

    report = rewrite.substitute(
        Net(), lambda x: ops.relu(x.transpose()), lambda x: ops.relu(x).transpose(), prove=(normal(3, 4),)
    )
    assert len(report.swapped) == 1, str(report)


def test_function_patterns_compare_slices_and_constants():
    class Net(nn.Cell):
        def construct(self, x):
            return ops.tanh(x[:, ::2]) + ops.tanh(x[:, 1::2] * np.array([1.0, 2.0], np.float32))

    x = normal(3, 4)
    even = rewrite.substitute(Net(), lambda x: ops.tanh(x[:, ::2]), lambda x: ops.tanh(x)[:, ::2], prove=(x,))
    assert even.matched == len(even.swapped) == 1
    for factor, count in [(2.0, 1), (3.0, 0)]:
        w = np.array([1.0, factor], np.float32)
        report = rewrite.substitute(Net(), lambda x, w=w: ops.tanh(x * w), lambda x, w=w: ops.tanh(w * x), prove=(x,))
        assert report.matched == count


def test_a_matmul_pattern_over_ranks_that_differ():
    net, x = nn.Dense(4, 3), normal(2, 5, 4)
    report = rewrite.substitute(
        net,
        lambda x, w, b: ops.matmul(x, w, transpose_b=True) + b,
        lambda x, w, b: ops.Custom.from_op("Dense", transpose_b=True)(x, w, b),
        prove=(x,),
    )
    assert len(report.swapped) == 1, str(report)


def test_a_bias_along_another_dimension_is_no_dense_layer():
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = opgraft.Parameter(normal(4, 3)), opgraft.Parameter(normal(3))

        def construct(self, x):
            return ops.bias_add(ops.matmul(x, self.weight), self.bias)

    for x, names in [(normal(5, 4), ["Dense"]), (normal(2, 3, 4), [])]:  # there, dimension 1 is as long as the last
        net = Net()
        want = net(x).asnumpy()
        report = rewrite.substitute(net)
        assert swapped(report) == names
        terms = linear(x, net.weight.asnumpy().T)[1] + np.abs(net.bias.asnumpy()).max()
        close(net(x).asnumpy(), want, 2 * (4 + 1), terms)


def test_several_results_and_several_nodes():
    class Net(nn.Cell):
        def construct(self, x):
            a, b = ops.Split(-1, 2)(x)
            return ops.exp(a) + b

    def pattern(x):
        a, b = ops.Split(-1, 2)(x)
        return ops.exp(a) + b

    report = rewrite.substitute(Net(), pattern, lambda x: ops.exp(x[..., :2]) + x[..., 2:], prove=(normal(3, 4),))
    assert len(report.swapped) == 1, str(report)
    assert report.swapped[0]["max_abs"] < 1e-6 and report.swapped[0]["ms_after"] > 0


def special_cases():
    """Replacements that differ from the square root of x only where x is inf or NaN, or only there give them."""
    a = np.array([1.0, 4.0, np.inf, np.nan], np.float32)
    yield "inf instead of a number", np.array([1.0, 4.0, 1e30], np.float32), lambda x: ops.sqrt(x * 1e20) / 1e10
    yield "a number instead of inf", a[:3], lambda x: ops.sqrt(ops.minimum(x, 1e30))
    yield "a number instead of NaN", np.array([1.0, -1.0], np.float32), lambda x: ops.sqrt(ops.maximum(x, 0.0))
    yield "NaN instead of inf", a[:3], lambda x: ops.sqrt(x) + (x - x)


@pytest.mark.parametrize("x,replacement", [c[1:] for c in special_cases()], ids=[c[0] for c in special_cases()])
def test_nan_and_inf_must_stand_in_the_same_places(x, replacement):
    class Net(nn.Cell):
        def construct(self, x):
            return ops.sqrt(x)

    finite = np.array([1.0, 4.0], np.float32)
    assert len(rewrite.substitute(Net(), lambda x: ops.sqrt(x), replacement, prove=(finite,)).swapped) == 1
    report = rewrite.substitute(Net(), lambda x: ops.sqrt(x), replacement, prove=(x,))
    assert report.swapped == [] and "the results differ" in report.left[0]["why"]
    # The same special values on both sides agree.
    same = np.array([np.inf, np.nan, -1.0, 4.0], np.float32)
    assert (
        len(rewrite.substitute(Net(), lambda x: ops.sqrt(x), lambda x: ops.sqrt(x + 0.0), prove=(same,)).swapped) == 1
    )


def test_only_faster_leaves_a_slow_operator_alone():
    class Net(nn.Cell):
        def construct(self, x):
            return ops.relu(x)

    def slow(x):
        for _ in range(30):
            x = ops.maximum(x, 0.0) * 1.0
        return x

    net, x = Net(), normal(64, 1024)
    report = rewrite.substitute(net, lambda x: ops.relu(x), slow, prove=(x,), only_faster=True)
    assert report.matched and not report.swapped
    assert "not 5 % faster" in report.left[0]["why"] and report.left[0]["node"] == "ReLU"
    assert len(rewrite.substitute(net, lambda x: ops.relu(x), slow, prove=(x,)).swapped) == 1

    class Slow(nn.Cell):
        def construct(self, x):
            return slow(x)

    report = rewrite.substitute(Slow(), slow, lambda x: ops.relu(x), prove=(x,), only_faster=True)
    assert len(report.swapped) == 1 and report.swapped[0]["ms_after"] * 1.05 <= report.swapped[0]["ms_before"]


def test_a_wrong_second_size_is_seen():
    class Net(nn.Cell):
        def construct(self, x):
            return ops.mean(x, 0)

    x = normal(6, 4)
    wrong = rewrite.substitute(Net(), lambda x: ops.mean(x, 0), lambda x: ops.sum(x, 0) * (1 / 6), prove=(x,))
    assert not wrong.swapped and "the results differ" in wrong.left[0]["why"]
    right = rewrite.substitute(Net(), lambda x: ops.mean(x, 0), lambda x: ops.sum(x, 0) / 6, prove=[(x,), (x,)])
    assert len(right.swapped) == 1  # the size is said to be fixed


def test_refusals():
    x = normal(2, 3)
    for arguments, error, match in [
        ({"prove": ()}, ValueError, "substitute: prove must be inputs of the model, got none"),
        ({"prove": []}, ValueError, "got none"),
        ({"prove": [(x,), (x, x)]}, ValueError, r"prove's tuples must be of one length, got \[1, 2\]"),
        ({"prove": [(x, x), (x, x[0])]}, ValueError, "prove's input 1 must have one dtype and rank"),
        ({"only_faster": True}, ValueError, "only_faster needs prove=inputs"),
        ({"pattern": lambda x: ops.relu(x)}, ValueError, "pattern needs a replacement"),
        ({"replacement": lambda x: ops.relu(x)}, ValueError, "replacement needs a pattern"),
        ({"pattern": 3, "replacement": lambda x: x}, TypeError, "pattern must be a function, got int"),
        ({"pattern": lambda *x: x, "replacement": lambda x: x}, TypeError, "tensors by position"),
        ({"pattern": lambda x: ops.relu(x), "replacement": lambda x, y: x}, ValueError, "1 arguments, got 2"),
        ({"pattern": lambda x: ops.relu(x, 3), "replacement": ops.relu, "prove": (x, x)}, ValueError, "cannot be trac"),
        ({"pattern": lambda x: x, "replacement": lambda x: x, "prove": (x, x)}, ValueError, "result of an operator"),
    ]:  # fmt: skip
        with pytest.raises(error, match=match):
            rewrite.substitute(Gated(), **arguments)
    with pytest.raises(TypeError, match="expected a Cell or a graph, got Tensor"):
        rewrite.substitute(Tensor([1.0]))
