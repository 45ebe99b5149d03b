"""The top of a bitstream: a board's clock and pins around UART, shell and joiner."""

from amaranth import ClockDomain, ClockSignal, Const, Instance, Module, Signal
from amaranth.lib import cdc, wiring
from amaranth.lib.wiring import In, Out

from .board import UartBoard
from .boards import Board
from .errors import ParameterError
from .frame import Link
from .parameters import Parameters
from .pll import DIVIDERS, add_pll
from .uart import DIVISOR_BELOW, DIVISOR_LEAST
from .verilog import whole

TOP = "touchline"


class Top(wiring.Component):
    """All that goes into a board's chip, with a port for each of its pins.

    The logic runs at `mhz`, from the board's oscillator, through a PLL where the family has one here; it is
    in reset until the PLL is locked, and while the board's button is pressed.
    """

    def __init__(
        self,
        board: Board,
        parameters: Parameters,
        link: Link,
        mhz: float,
        baud: int,
        build: bytes = bytes(32),
    ):
        self._board = board
        self._mhz = mhz
        self._dividers = board.mhz is None and DIVIDERS[board.family](board.clock_mhz, mhz)
        self._inside = UartBoard(parameters, link, mhz * 1e6 / baud, build)
        # A chip without a board has only what it needs.
        ports = {port: In(1) for port in board.ports() if port.startswith(("clk", "reset"))} or {"clk": In(1)}
        fixed = {name: Out(1) for name, pin in board.pins.items() if pin.drive is not None}
        super().__init__(ports | {"rx": In(1), "tx": Out(1)} | fixed)

    def elaborate(self, platform):
        m = Module()
        board = self._board
        clk = getattr(self, "clk", None)
        if clk is None:
            clk = Signal()
            m.submodules.clk_buffer = Instance("IBUFGDS", i_I=self.clk_p, i_IB=self.clk_n, o_O=clk)
        locked = Const(1)
        if self._dividers:
            clk, locked = add_pll(m, board.family, self._dividers, clk, board.clock_mhz, self._mhz)
        m.domains.sync = ClockDomain()
        m.d.comb += ClockSignal().eq(clk)
        stopped = ~locked
        if "reset" in board.pins:
            stopped = stopped | (self.reset ^ board.pins["reset"].low)
        m.submodules.reset = cdc.ResetSynchronizer(stopped)
        m.submodules.board = inside = self._inside
        m.d.comb += [inside.rx.eq(self.rx), self.tx.eq(inside.tx)]
        for name, pin in board.pins.items():
            if pin.drive is not None:
                m.d.comb += getattr(self, name).eq(pin.drive)
        return m


def emit_top(
    board: Board,
    parameters: Parameters,
    link: Link,
    mhz: float,
    baud: int,
    build: bytes = bytes(32),
    *,
    sources: bool = False,
) -> str:
    """The Verilog of a bitstream's top, the module `TOP`; `sources` as in `whole`."""
    if board.mhz is not None and mhz != board.mhz:
        raise ParameterError(f"MHz must be {board.mhz:g} on {board.name}, where no PLL is used, not {mhz:g}")
    if board.baud_limit is not None and baud > board.baud_limit:
        raise ParameterError(
            f"baud must be at most {board.baud_limit} on {board.name} ({board.bridge}), not {baud}"
        )
    slowest, fastest = -int(-mhz * 1e6 // DIVISOR_BELOW), int(mhz * 1e6 / DIVISOR_LEAST)
    if not slowest <= baud <= fastest:
        raise ParameterError(f"baud must be from {slowest} to {fastest} at {mhz:g} MHz, not {baud}")
    return whole(lambda: Top(board, parameters, link, mhz, baud, build), TOP, sources=sources)
