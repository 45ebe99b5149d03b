"""A UART: 8 data bits, no parity, 1 stop bit, at any rate up to a third of the clock."""

from amaranth import Cat, Module, Signal
from amaranth.lib import cdc, stream, wiring
from amaranth.lib.wiring import In, Out

from .errors import ParameterError

FRACTION = 8  #: bits behind the point of a divisor
DIVISOR_LEAST, DIVISOR_BELOW = 3, 1 << 16  #: clocks per bit


class Uart(wiring.Component):
    """Bytes to and from two wires, with `divisor` clocks per bit, which need not be whole.

    Each edge lies at the clock next to its true place, so errors do not add up over a byte. A byte that
    arrives with a stop bit that is low is dropped. `received` does not wait: what is not taken is lost.

    Throughput: a byte every 10 bits, both ways at once.
    """

    def __init__(self, divisor: float):
        if not DIVISOR_LEAST <= divisor < DIVISOR_BELOW:
            raise ParameterError(
                f"UART divisor must be at least {DIVISOR_LEAST} clocks per bit and below {DIVISOR_BELOW}, "
                f"not {divisor!r}"
            )
        self._divisor = round(divisor * (1 << FRACTION))
        super().__init__(
            {
                "rx": In(1, init=1),
                "tx": Out(1, init=1),
                "received": Out(stream.Signature(8)),
                "sent": In(stream.Signature(8)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        one = 1 << FRACTION
        wide = range(2 * self._divisor + one)

        # Sending: a shift register of stop bit, byte, start bit; the line rests high. The next byte waits
        # in a register, so that whether there is room is known early in a cycle.
        waits = Signal()
        byte = Signal(8)
        takes = Signal()
        bits = Signal(10, init=0x3FF)
        left = Signal(range(11))
        tx_phase = Signal(wide)
        tx_tick = tx_phase < one
        m.d.comb += [
            self.tx.eq(bits[0]),
            self.sent.ready.eq(~waits),
            takes.eq(waits & ((left == 0) | ((left == 1) & tx_tick))),
        ]
        m.d.sync += tx_phase.eq(tx_phase - one)
        with m.If(tx_tick):
            m.d.sync += tx_phase.eq(tx_phase - one + self._divisor)
            with m.If(left != 0):
                m.d.sync += [bits.eq(Cat(bits[1:], 1)), left.eq(left - 1)]
        with m.If(left == 0):
            m.d.sync += tx_phase.eq(self._divisor - one)
        with m.If(takes):
            m.d.sync += [bits.eq(Cat(0, byte, 1)), left.eq(10), waits.eq(0)]
        with m.If(self.sent.valid & self.sent.ready):
            m.d.sync += [byte.eq(self.sent.payload), waits.eq(1)]

        # Receiving: half a bit after the line falls, then every bit.
        line = Signal(init=1)
        m.submodules += cdc.FFSynchronizer(self.rx, line, init=1)
        waiting = Signal(range(11))
        rx_phase = Signal(wide)
        shifted = Signal(8)
        rx_tick = rx_phase < one
        with m.If(self.received.ready):
            m.d.sync += self.received.valid.eq(0)
        with m.If(waiting == 0):
            m.d.sync += rx_phase.eq(self._divisor // 2)
            with m.If(~line):
                m.d.sync += waiting.eq(10)
        with m.Elif(rx_tick):
            m.d.sync += [
                rx_phase.eq(rx_phase - one + self._divisor),
                waiting.eq(waiting - 1),
                shifted.eq(Cat(shifted[1:], line)),
            ]
            with m.If((waiting == 10) & line):
                m.d.sync += waiting.eq(0)  # a glitch, not a start bit
            with m.If((waiting == 1) & line):
                m.d.sync += [self.received.valid.eq(1), self.received.payload.eq(shifted)]
        with m.Else():
            m.d.sync += rx_phase.eq(rx_phase - one)
        return m
