"""The plugs for the socket, by architecture."""

from amaranth.lib import wiring

from .handshake import Handshake
from .op_chain import OpChain
from .parameters import Parameters
from .splitjoin import SplitJoin

JOINERS = {"handshake": Handshake, "opblock": OpChain, "splitjoin": SplitJoin}


def joiner(parameters: Parameters) -> wiring.Component:
    """The joiner that `parameters` describe."""
    return JOINERS[parameters.architecture](parameters)
