"""The plugs for the socket, by architecture."""

from amaranth.lib import wiring

from .handshake import Handshake
from .memory_port import MemoryPort
from .op_chain import OpChain
from .parameters import Parameters

JOINERS = {"handshake": Handshake, "opblock": OpChain}


def joiner(parameters: Parameters) -> wiring.Component:
    """The joiner that `parameters` describe."""
    return JOINERS[parameters.architecture](parameters)


def memory_port(parameters: Parameters) -> MemoryPort | None:
    """The memory port of that joiner, if it has one."""
    return None
