"""Verilog of a joiner, as simulator and synthesis read it."""

from amaranth.back import verilog

from .joiner import joiner
from .parameters import Parameters
from .stamp import collecting


def emit(parameters: Parameters) -> str:
    """The Verilog of a whole joiner; its top module is called `parameters.name`."""
    with collecting() as modules:
        top = verilog.convert(
            joiner(parameters), name=parameters.name, emit_src=False, strip_internal_attrs=True
        )
    return "\n".join([*(module.text for module in modules.values()), top])
