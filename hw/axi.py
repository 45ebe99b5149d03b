"""The shell behind AXI: streams for a DMA engine, and its registers for a processor.

::

                     +----------------------------+
    s_axis_* ------->| incoming          outgoing |--> [ register ] --> m_axis_*
                     |            shell           |
    s_axil_ar* ----->| register             value |--> [ register ] --> s_axil_r*
                     +----------------------------+
    s_axil_aw*, s_axil_w* -------------------------------------------> s_axil_b*

A word of the link is a transfer of a stream. Frames are whole words and say how long they are, so
`s_axis` needs neither `tkeep` nor `tlast`. `m_axis_tlast` marks a frame's last word, which ends the
transfer of a DMA engine. Register number n is at address 4 n; all are read-only, so each write is
answered with SLVERR.
"""

from amaranth import ClockDomain, ClockSignal, Module, ResetSignal, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from .frame import NUMBERS, Link
from .parameters import Parameters
from .shell import Shell

REGISTER_BYTES = 4
ADDRESS_WIDTH = (NUMBERS * REGISTER_BYTES - 1).bit_length()


class Response(enum.Enum, shape=2):
    """How a transfer on AXI4-Lite went."""

    OKAY = 0
    SLVERR = 2


class AxiBoard(wiring.Component):
    """A shell on AXI4-Stream, slave and master, and AXI4-Lite; ports are named as AXI tools expect.

    Latency: a word is on `m_axis` one cycle after the shell offers it; a value is on `s_axil_r*` one cycle
    after its address, a response on `s_axil_b*` one cycle after address and data, whichever comes first.
    Throughput: one word per cycle in and one out at the same time, frame upon frame; a read and a write
    every two cycles.
    """

    def __init__(self, parameters: Parameters, link: Link):
        self._shell = Shell(parameters, link)
        super().__init__(
            {
                "aclk": In(1),
                "aresetn": In(1),
                "s_axis_tdata": In(link.width),
                "s_axis_tvalid": In(1),
                "s_axis_tready": Out(1),
                "m_axis_tdata": Out(link.width),
                "m_axis_tkeep": Out(link.width // 8),
                "m_axis_tlast": Out(1),
                "m_axis_tvalid": Out(1),
                "m_axis_tready": In(1),
                "s_axil_awaddr": In(ADDRESS_WIDTH),
                "s_axil_awprot": In(3),
                "s_axil_awvalid": In(1),
                "s_axil_awready": Out(1),
                "s_axil_wdata": In(32),
                "s_axil_wstrb": In(4),
                "s_axil_wvalid": In(1),
                "s_axil_wready": Out(1),
                "s_axil_bresp": Out(Response),
                "s_axil_bvalid": Out(1),
                "s_axil_bready": In(1),
                "s_axil_araddr": In(ADDRESS_WIDTH),
                "s_axil_arprot": In(3),
                "s_axil_arvalid": In(1),
                "s_axil_arready": Out(1),
                "s_axil_rdata": Out(32),
                "s_axil_rresp": Out(Response),
                "s_axil_rvalid": Out(1),
                "s_axil_rready": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.domains.sync = ClockDomain()
        m.d.comb += [ClockSignal().eq(self.aclk), ResetSignal().eq(~self.aresetn)]
        m.submodules.shell = shell = self._shell
        m.d.comb += [
            shell.incoming.payload.eq(self.s_axis_tdata),
            shell.incoming.valid.eq(self.s_axis_tvalid),
            self.s_axis_tready.eq(shell.incoming.ready),
        ]

        # The shell's word may change while it waits, if a RESET comes; a word on AXI must not.
        word = Signal(len(self.m_axis_tdata), reset_less=True)
        last = Signal(reset_less=True)
        m.d.comb += [
            shell.outgoing.ready.eq(~self.m_axis_tvalid | self.m_axis_tready),
            self.m_axis_tdata.eq(word),
            self.m_axis_tkeep.eq(-1),
            self.m_axis_tlast.eq(last),
        ]
        with m.If(shell.outgoing.ready):
            m.d.sync += [
                self.m_axis_tvalid.eq(shell.outgoing.valid),
                word.eq(shell.outgoing.payload),
                last.eq(shell.last),
            ]

        value = Signal(32, reset_less=True)
        m.d.comb += [
            shell.register.eq(self.s_axil_araddr // REGISTER_BYTES),
            self.s_axil_arready.eq(~self.s_axil_rvalid),
            self.s_axil_rdata.eq(value),
            self.s_axil_rresp.eq(Response.OKAY),
        ]
        with m.If(self.s_axil_rvalid):
            m.d.sync += self.s_axil_rvalid.eq(~self.s_axil_rready)
        with m.Elif(self.s_axil_arvalid):
            m.d.sync += [self.s_axil_rvalid.eq(1), value.eq(shell.value)]

        address_came = Signal()
        data_came = Signal()
        m.d.comb += [
            self.s_axil_awready.eq(~address_came),
            self.s_axil_wready.eq(~data_came),
            self.s_axil_bvalid.eq(address_came & data_came),
            self.s_axil_bresp.eq(Response.SLVERR),
        ]
        with m.If(self.s_axil_bvalid):
            with m.If(self.s_axil_bready):
                m.d.sync += [address_came.eq(0), data_came.eq(0)]
        with m.Else():
            m.d.sync += [
                address_came.eq(address_came | self.s_axil_awvalid),
                data_came.eq(data_came | self.s_axil_wvalid),
            ]
        return m
