"""The plugs for the socket, by architecture."""

from amaranth.lib import wiring

from .handshake import Handshake
from .op_chain import OpChain
from .parameters import Parameters

JOINERS = {"handshake": Handshake, "opblock": OpChain}


def joiner(parameters: Parameters) -> wiring.Component:
    """The joiner that `parameters` describe."""
    return JOINERS[parameters.architecture](parameters)
