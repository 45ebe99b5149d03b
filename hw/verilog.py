"""Verilog of a joiner, or of anything around one, as simulator and synthesis read it."""

from collections.abc import Callable

from amaranth.back import verilog
from amaranth.lib import wiring

from .joiner import joiner
from .parameters import Parameters
from .stamp import collecting


def emit(parameters: Parameters) -> str:
    """The Verilog of a whole joiner; its top module is called `parameters.name`."""
    return whole(lambda: joiner(parameters), parameters.name)


def whole(make: Callable[[], wiring.Component], name: str) -> str:
    """The Verilog of what `make` makes, each stamped module once; its top module is called `name`."""
    with collecting() as modules:
        top = verilog.convert(make(), name=name, emit_src=False, strip_internal_attrs=True)
    return "\n".join([*(module.text for module in modules.values()), top])
