"""opgraft: the row's operator (or its own program) in a traced Cell, run by a session, results bound once."""

import opgraft
from opgraft import _core

from . import Missing


def VERSION():
    return opgraft.__version__


def build(row, inputs, weights, threads):
    _core.set_threads(threads)
    if not (row.op or row.opgraft or row.cell):
        raise Missing(row.missing.get("opgraft", "no operator"))

    class Net(opgraft.nn.Cell):
        def __init__(self):
            super().__init__()
            self.names = [f"weight{k}" for k in range(len(weights))]
            for name, w in zip(self.names, weights):
                setattr(self, name, opgraft.Parameter(opgraft.Tensor(w)))

        def construct(self, *x):
            given = [*x, *(getattr(self, n) for n in self.names)]
            if row.opgraft is not None:
                return row.opgraft(opgraft)(*given)
            return opgraft.ops.primitive(row.op, *given, **row.attrs)

    net = row.cell(opgraft) if row.cell else Net()
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    session = net.session(*(opgraft.Tensor(a) for a in inputs))
    last = session.run(inputs)

    return lambda: session.run_into(inputs, last), lambda: last
