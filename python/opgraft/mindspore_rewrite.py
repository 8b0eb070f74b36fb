"""Chains of calls in a MindSpore Cell, found and replaced through `mindspore.rewrite`.

What MindSpore 2.10's SymbolTree lacks is made up for here: it replaces one node only, so the users of a chain are
looked at and its other nodes erased; it does not see what control flow reads; and what it changes it changes in the
original as well, so it is given twins: Cells with the same parameters, primitives and leaves.
"""

import ast
import contextlib
import functools
import importlib.util
import inspect
import operator
import os
import pathlib
import sys
import tempfile
import textwrap
from typing import NamedTuple

from mindspore import nn
from mindspore.rewrite import Node, NodeType, SymbolTree, ValueType

from .mindspore_twins import copy, precise, put, twin

_OPERATORS = {ast.Add: ("Add", operator.add), ast.Sub: ("Sub", operator.sub), ast.Mult: ("Mul", operator.mul),
              ast.Div: ("Div", operator.truediv), ast.MatMult: ("MatMul", operator.matmul),
              ast.Pow: ("Pow", operator.pow)}  # fmt: skip


@contextlib.contextmanager
def _real_paths():
    """Within, sys.path has the real paths, too, by which mindspore.rewrite looks for what a module imports relatively:
    they differ where an environment is reached by a symbolic link. What it adds itself is gone afterwards."""
    path = list(sys.path)
    sys.path += [real for p in path if (real := os.path.realpath(p)) not in path]
    try:
        yield
    finally:
        sys.path[:] = path


def check(chain):
    for element in chain:
        if not (isinstance(element, str) or callable(element)):
            raise TypeError(f"graft: the chain must be of types, functions and names, got {element!r}")
    if not chain:
        raise ValueError("graft: the chain must name at least one call, got none")


def _label(what):
    if isinstance(what, (nn.Cell, type)) or not hasattr(what, "__name__"):
        what = what if isinstance(what, type) else type(what)
    return what.__name__


class _Call(NamedTuple):
    """A node of a SymbolTree that calls something: what, its name, and whether it is a plain Python operator."""

    what: object
    label: str
    plain: bool = False

    @staticmethod
    def of(node):
        kind = node.get_node_type()
        if kind in (NodeType.CallCell, NodeType.CallPrimitive, NodeType.Tree, NodeType.CellContainer,
                    NodeType.CallFunction):  # fmt: skip
            what = node.get_instance()
            return None if what is None else _Call(what, _label(what))
        value = getattr(node.get_handler().get_ast(), "value", None)
        if kind == NodeType.MathOps and isinstance(value, ast.BinOp) and type(value.op) in _OPERATORS:
            label, function = _OPERATORS[type(value.op)]
            return _Call(function, label, True)
        return None

    def fits(self, element):
        if isinstance(element, str):
            return element.lower() == self.label.lower()
        if self.plain:  # `*` is Mul, whichever of MindSpore's
            return element is self.what or _label(element).lower() == self.label.lower()
        return isinstance(self.what, element) if isinstance(element, type) else self.what is element


class Chain(NamedTuple):
    """A chain found: where, its calls, their arguments, and why it cannot be replaced (or None).

    indices are those of its nodes or, in a SequentialCell, of its cells; inputs the ScopedValues that come from
    outside; steps say where each call's arguments come from.
    """

    path: str
    indices: tuple
    calls: tuple
    inputs: tuple
    steps: tuple
    why: str | None

    @property
    def op(self):
        return "+".join(call.label for call in self.calls)

    def parts(self):
        """What the factory is given: cells, primitives and functions, these with their constants by keyword."""
        for call, (_, given) in zip(self.calls, self.steps):
            fixed = {k: v for k, (kind, v) in given.items() if kind == "constant"}
            yield functools.partial(call.what, **fixed) if fixed else call.what

    def __call__(self, *inputs):
        """The chain as it was, on its inputs."""
        result = None

        def value(source):
            kind, of = source
            return result if kind == "before" else inputs[of] if kind == "input" else of

        for call, (args, kwargs) in zip(self.calls, self.steps):
            result = call.what(*map(value, args), **{k: value(v) for k, v in kwargs.items()})
        return result


def _reads(node):
    """Names of variables that a node reads, with all that stands in it."""
    for n in ast.walk(node.get_handler().get_ast()):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
            yield n.id
        elif isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name):
            yield n.target.id


def _changes(node):
    """Names of variables that a node assigns or writes into."""
    for n in ast.walk(node.get_handler().get_ast()):
        if isinstance(getattr(n, "ctx", None), (ast.Store, ast.Del)):
            while isinstance(n, (ast.Subscript, ast.Attribute)):
                n = n.value
            if isinstance(n, ast.Name):
                yield n.id


def _follow(nodes, at, element):
    """(index of the node after nodes[at] in a chain or None, why the two cannot be one or None)"""
    targets = nodes[at].get_targets()
    if len(targets) != 1:
        return None, None
    name, readers = str(targets[0]), []
    for j in range(at + 1, len(nodes)):
        if name in _reads(nodes[j]):
            readers.append(j)
        if name in map(str, nodes[j].get_targets()):
            break
    for j in readers:
        call = _Call.of(nodes[j])
        if call and call.fits(element) and name in map(str, _values(nodes[j])):
            others = [nodes[k].get_name() for k in readers if k != j]
            return j, f"{nodes[at].get_name()}'s result is also read by {', '.join(others)}" if others else None
    return None, None


def _values(node):
    return [*node.get_args(), *node.get_kwargs().values()]


def _wiring(nodes, indices):
    """(inputs, steps, why not or None) of a chain of nodes."""
    inputs, steps, before, why = [], [], None, None

    def source(arg, at):
        nonlocal why
        if arg.type == ValueType.ConstantValue:
            return "constant", arg.value
        if arg.type != ValueType.NamingValue:
            why = why or f"{nodes[at].get_name()} has an argument that mindspore.rewrite does not take apart"
            return "constant", None
        if str(arg) == before:
            return "before", None
        for k in range(at + 1, indices[-1]):
            if k not in indices and str(arg) in _changes(nodes[k]):
                why = why or f"{arg} is changed by {nodes[k].get_name()}, between its calls"
        inputs.append(arg)
        return "input", len(inputs) - 1

    for at in indices:
        args = [source(a, at) for a in nodes[at].get_args()]
        steps.append((args, {k: source(v, at) for k, v in nodes[at].get_kwargs().items()}))
        before = str(nodes[at].get_targets()[0])
    return tuple(inputs), tuple(steps), why


def _among(nodes, pattern, path, why=None):
    """Chains among the nodes of one level, first come first served; `why`: none of them can be replaced."""
    found, taken = [], set()
    for i, node in enumerate(nodes):
        call = _Call.of(node)
        if i in taken or call is None or not call.fits(pattern[0]):
            continue
        indices, reason = [i], why
        for element in pattern[1:]:
            j, torn = _follow(nodes, indices[-1], element)
            if j is None or j in taken:
                break
            indices.append(j)
            reason = reason or torn
        else:
            inputs, steps, hidden = _wiring(nodes, indices)
            calls = tuple(_Call.of(nodes[k]) for k in indices)
            of_cell = node.get_node_type() not in (NodeType.CallFunction, NodeType.MathOps)
            place = node.get_name() if of_cell else call.label
            name = f"{path}.{place}" if path else place
            found.append(Chain(name, tuple(indices), calls, inputs, steps, reason or hidden))
            taken.update(indices)
    return found


def _in_blocks(nodes, pattern, path):
    """Chains within if and for: their variables live on around them, so they are only reported."""
    found = []
    for node in nodes:
        if node.get_node_type() == NodeType.ControlFlow:
            inner = [Node(n) for n in node.get_handler().nodes()]
            found += _among(inner, pattern, path, "it stands within an if or for")
            found += _in_blocks(inner, pattern, path)
    return found


class Found(NamedTuple):
    """The chains of one Cell, and why its construct cannot be read (or None)."""

    cell: nn.Cell
    path: str
    chains: list
    why: str | None = None


def _other_uses(net, cell):
    """Why a SequentialCell's cells may be reached one by one, which a swap would change; None where they are not."""
    if type(cell).construct is not nn.SequentialCell.construct:
        return f"{type(cell).__name__} has a construct of its own"
    names = {name for _, parent in net.cells_and_names() for name, child in parent._cells.items() if child is cell}
    for _, parent in net.cells_and_names():
        for base in type(parent).__mro__:
            if base.__module__.startswith("mindspore.") or base in nn.Cell.__mro__:
                continue
            try:
                tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
            except (OSError, TypeError, SyntaxError):
                return f"the source of {base.__name__} cannot be read"
            called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
            for n in ast.walk(tree):
                if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and id(n) not in called:
                    if n.attr in names or n.attr in ("cell_list", "_cells"):
                        return f"{base.__name__} uses {ast.unparse(n)} otherwise than by calling it"
                inner = isinstance(n, ast.Subscript) and isinstance(n.value, (ast.Name, ast.Subscript))
                if inner and isinstance(n.ctx, ast.Load) and id(n) in called:  # a cell of a cell of a list
                    return f"{base.__name__} calls {ast.unparse(n)}, which may be one of its cells"
    return None


@_real_paths()
def find(net, pattern):
    """Found for every Cell within net, itself as well, that has such chains or cannot be read."""
    found = []
    for path, cell in net.cells_and_names():
        if isinstance(cell, nn.SequentialCell):
            chains = _in_sequence(cell, pattern, path)
            why = _other_uses(net, cell) if chains else None
            one = Found(cell, path, [c._replace(why=c.why or why) for c in chains])
        elif type(cell).__module__.startswith("mindspore.") or isinstance(cell, nn.CellList):
            continue  # MindSpore's own: SymbolTree does not look into them either
        else:
            try:
                nodes = SymbolTree.create(twin(cell)).nodes()
                nodes = list(nodes)
                one = Found(cell, path, _among(nodes, pattern, path) + _in_blocks(nodes, pattern, path))
            except Exception as e:  # whatever MindSpore's parser stumbles over
                text = str(e).strip().splitlines()
                one = Found(cell, path, [], f"mindspore.rewrite cannot read it: {text[0] if text else repr(e)}")
        if one.chains or one.why:
            found.append(one)
    return found


def _in_sequence(cell, pattern, path):
    found, cells, at = [], list(cell._cells.items()), 0
    while at + len(pattern) <= len(cells):
        part = cells[at : at + len(pattern)]
        calls = tuple(_Call(c, _label(c)) for _, c in part)
        if not all(call.fits(element) for call, element in zip(calls, pattern)):
            at += 1
            continue
        steps = tuple(([("before", None) if i else ("input", 0)], {}) for i in range(len(part)))
        indices = tuple(range(at, at + len(part)))
        name = f"{path}.{part[0][0]}" if path else part[0][0]
        found.append(Chain(name, indices, calls, (None,), steps, None))
        at += len(part)
    return found


@functools.cache
def _folder():
    """For the sources of rewritten Cells, which graph mode reads when it compiles; gone when the process ends."""
    return tempfile.TemporaryDirectory(prefix="opgraft-rewritten-")


def _functions(tree):
    """What the functions of the tree's source stand for: SymbolTree writes each that is called anew, as `silu_opt`."""
    known = {}
    for node in tree.nodes(all_nodes=True):
        if node.get_node_type() == NodeType.CallFunction and callable(node.get_instance()):
            function = getattr(getattr(node.get_handler().get_ast(), "value", None), "func", None)
            if isinstance(function, ast.Name):
                known[function.id] = node.get_instance()
    return known


def _built(source, functions, cell):
    """A Cell of the last class in the source, made from a twin."""
    name = [n.name for n in ast.parse(source).body if isinstance(n, ast.ClassDef)][-1]
    with tempfile.NamedTemporaryFile("w", dir=_folder().name, suffix=".py", delete=False) as f:
        f.write(source)
    module_name = f"opgraft_rewritten_{pathlib.Path(f.name).stem}"
    spec = importlib.util.spec_from_file_location(module_name, f.name)
    sys.modules[module_name] = module = importlib.util.module_from_spec(spec)  # inspect.getsource looks there
    with _real_paths():  # the sources begin with insertions into it
        spec.loader.exec_module(module)
    module.__dict__.update(functions)
    return precise(getattr(module, name)(cell), cell)


def _replaced(cell, pattern, news):
    """A new Cell in which news[k] stands for the k-th chain."""
    cell = twin(cell) if isinstance(cell, nn.SequentialCell) else copy(cell, {})
    if isinstance(cell, nn.SequentialCell):
        items = list(cell._cells.items())
        for k, chain in enumerate(_in_sequence(cell, pattern, "")):
            if k in news:
                for i in chain.indices:
                    items[i] = (items[i][0], news[k] if i == chain.indices[-1] else None)
        # MindSpore's names are consecutive numbers, unless given.
        kept = [(name, c) for name, c in items if c is not None]
        numbered = all(name == str(i) for i, (name, _) in enumerate(items))
        cell._cells.clear()
        put(cell, {str(i) if numbered else name: c for i, (name, c) in enumerate(kept)})
        return cell
    with _real_paths():
        tree = SymbolTree.create(cell)
    nodes = list(tree.nodes())
    for k, chain in enumerate(_among(nodes, pattern, "")):
        if k in news:
            last = nodes[chain.indices[-1]]
            name = tree.unique_name(f"grafted_{last.get_name()}")
            call = Node.create_call_cell(news[k], targets=last.get_targets(), args=list(chain.inputs), name=name)
            tree.replace(last, [call])
            for i in reversed(chain.indices[:-1]):
                tree.erase(nodes[i])
    return _built(tree.get_code(), _functions(tree), cell)


def replaced(net, pattern, news):
    """A model with news[id(cell)][k] in place of the k-th chain of each Cell. `net` and its parameters' names stay
    as they are; all that is not on the way to a change is shared."""
    names = [(p, p.name) for p in net.get_parameters()]
    done = {}

    def final(cell):
        if id(cell) in done:
            return done[id(cell)]
        children = {n: final(c) for n, c in cell._cells.items() if c is not None}
        if id(cell) in news:
            new = _replaced(cell, pattern, news[id(cell)])
            if isinstance(new, nn.SequentialCell):
                children = {n: done.get(id(c), c) for n, c in new._cells.items()}
            put(new, children)
        else:
            changed = any(c is not cell._cells[n] for n, c in children.items())
            new = twin(cell, children) if changed else cell
        done[id(cell)] = new
        return new

    try:
        result = final(net)
    finally:
        for p, name in names:
            p.name = name
    known = {id(p) for p, _ in names}
    for path, p in result.parameters_and_names():
        if id(p) not in known:  # of a new Cell: graph mode asks for names that differ
            p.name = path
    return result
