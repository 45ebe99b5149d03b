"""Verilog of a joiner, or of anything around one, as simulator and synthesis read it."""

from collections.abc import Callable

from amaranth.lib import wiring

from .joiner import joiner
from .parameters import Parameters
from .stamp import collecting, convert


def emit(parameters: Parameters) -> str:
    """The Verilog of a whole joiner; its top module is called `parameters.name`."""
    return whole(lambda: joiner(parameters), parameters.name)


def whole(make: Callable[[], wiring.Component], name: str, *, sources: bool = False) -> str:
    """The Verilog of what `make` makes, each stamped module once; its top module is called `name`.

    With `sources` each wire says where in the project it comes from, for those who report on it.
    """
    with collecting(sources=sources) as modules:
        top = convert(make(), name, sources=sources)
    return "\n".join([*(module.text for module in modules.values()), top])
