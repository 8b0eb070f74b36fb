"""Cells of a function, and of Parameters with a way in which they are written."""

from mindspore import Parameter, Tensor, nn


class Written(nn.Cell):
    """A function of the inputs, and of the Tensors that it is given behind them."""

    def __init__(self, write, *held):
        super().__init__()
        self.write, self.held = write, held

    def construct(self, *x):
        return self.write(*x, *self.held)


class Held(nn.Cell):
    """Parameters of these names; `how` tells a construct which of its spellings is meant."""

    def __init__(self, how, **held):
        super().__init__()
        self.how = how
        for name, value in held.items():
            setattr(self, name, Parameter(Tensor(value), name=name))
