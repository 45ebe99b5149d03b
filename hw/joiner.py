"""The plugs for the socket, by architecture."""

from amaranth.lib import wiring

from .bisort import BiSort, Geometry
from .handshake import Handshake
from .lowlatency import LowLatency
from .memory_port import MemoryPort
from .op_chain import OpChain
from .parameters import Parameters
from .scalejoin import ScaleJoin
from .splitjoin import SplitJoin

JOINERS = {
    "handshake": Handshake,
    "opblock": OpChain,
    "bisort": BiSort,
    "splitjoin": SplitJoin,
    "lowlatency": LowLatency,
    "scalejoin": ScaleJoin,
}


def joiner(parameters: Parameters) -> wiring.Component:
    """The joiner that `parameters` describe."""
    return JOINERS[parameters.architecture](parameters)


def memory_port(parameters: Parameters) -> MemoryPort | None:
    """The memory port of that joiner, if it has one."""
    return Geometry.of(parameters).port if parameters.architecture == "bisort" else None
