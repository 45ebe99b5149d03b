"""What a board holds: pins, shell, joiner."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .axi import AxiBoard
from .frame import Link
from .parameters import Parameters
from .shell import Shell
from .uart import Uart
from .verilog import whole


class StreamBoard(wiring.Component):
    """A shell whose words come and go on streams, as a DMA engine has them."""

    def __init__(self, parameters: Parameters, link: Link):
        self._shell = Shell(parameters, link)
        super().__init__({name: self._shell.signature.members[name] for name in ("incoming", "outgoing")})

    def elaborate(self, platform):
        m = Module()
        m.submodules.shell = self._shell
        wiring.connect(m, self._shell.incoming, wiring.flipped(self.incoming))
        wiring.connect(m, self._shell.outgoing, wiring.flipped(self.outgoing))
        return m


class UartBoard(wiring.Component):
    """A shell whose words are the bytes of a UART with `divisor` clocks per bit."""

    def __init__(self, parameters: Parameters, link: Link, divisor: float, build: bytes = bytes(32)):
        self._uart = Uart(divisor)
        self._shell = Shell(parameters, link, build)
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.shell = shell = self._shell
        m.submodules.uart = uart = self._uart
        wiring.connect(m, uart.received, shell.incoming)
        wiring.connect(m, shell.outgoing, uart.sent)
        m.d.comb += [uart.rx.eq(self.rx), self.tx.eq(uart.tx)]
        return m


def board(parameters: Parameters, link: Link, pins: str, divisor: float | None = None) -> wiring.Component:
    """The board with these pins: "stream", "axi", or "uart" with a divisor."""
    if pins == "uart":
        return UartBoard(parameters, link, divisor)
    return {"stream": StreamBoard, "axi": AxiBoard}[pins](parameters, link)


def emit_board(
    parameters: Parameters, link: Link, pins: str, divisor: float | None = None, name: str = "board"
) -> str:
    """The Verilog of a whole board; its top module is called `name`."""
    return whole(lambda: board(parameters, link, pins, divisor), name)
