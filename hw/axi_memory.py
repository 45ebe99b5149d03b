"""The memory port on AXI4: what a board's memory controller is attached to.

::

                  +--> [ bursts ] --> [ queue ] ------------------> m_axi_ar*
      read ------>+
      data <------------------------------------------------------- m_axi_r*
      write ----->+--> [ bursts ] -+> [ queue ] ------------------> m_axi_aw*
                                   +> [ lengths ] --+
      written --------------------------------------+-------------> m_axi_w*
                                   +> [ which are last ] --+
      done <-----------------------------------------------+------- m_axi_b*

Bursts of the port are cut so that none crosses 4 KiB or is longer than 256 beats. All have the id 0, so that
memory answers in order.
"""

from amaranth import Module, Signal
from amaranth.lib import data, fifo, wiring
from amaranth.lib.wiring import In, Out

from .axi import Response
from .bursts import Bursts
from .errors import ParameterError
from .memory_port import LENGTH_WIDTH, MemoryPort

BOUNDARY_BYTES = 4096
MOST_BEATS = 256
#: How many bursts may be under way in each direction before requests wait for the first of them.
OUTSTANDING = 32
#: The type of bursts whose addresses go on from word to word.
INCREMENTING = 1


def check_words(port: MemoryPort) -> None:
    """Refuses a memory port whose words AXI does not have."""
    if port.width not in (8 << size for size in range(8)):
        raise ParameterError(f"AXI memory words must have 8, 16, ... 1024 bits, not {port.width}")


class AxiMemory(wiring.Component):
    """A master on AXI4 for a memory port of 8, 16, ... 1024 bits; ports are named as AXI tools expect.

    `fault` stays high once memory has refused a transfer: what it read or wrote since is not to be trusted.

    Latency: a request is on its channel 2 cycles after it came; words and responses pass in the same cycle.
    Throughput: one word per cycle each way, and one burst on AXI per cycle.
    """

    def __init__(self, port: MemoryPort):
        self._port = port
        self._word_bytes = port.width // 8
        address_width = port.address_width + (self._word_bytes - 1).bit_length()
        request = {"id": 1, "addr": address_width, "len": 8, "size": 3, "burst": 2, "valid": 1}
        super().__init__(
            {
                "memory": In(port),
                "fault": Out(1),
                **{
                    f"m_axi_{channel}{name}": Out(shape)
                    for channel in ("ar", "aw")
                    for name, shape in request.items()
                },
                "m_axi_arready": In(1),
                "m_axi_rid": In(1),
                "m_axi_rdata": In(port.width),
                "m_axi_rresp": In(2),
                "m_axi_rlast": In(1),
                "m_axi_rvalid": In(1),
                "m_axi_rready": Out(1),
                "m_axi_awready": In(1),
                "m_axi_wdata": Out(port.width),
                "m_axi_wstrb": Out(self._word_bytes),
                "m_axi_wlast": Out(1),
                "m_axi_wvalid": Out(1),
                "m_axi_wready": In(1),
                "m_axi_bid": In(1),
                "m_axi_bresp": In(2),
                "m_axi_bvalid": In(1),
                "m_axi_bready": Out(1),
            }
        )

    def elaborate(self, platform):
        check_words(self._port)
        m = Module()
        port, memory = self._port, self.memory
        longest = min(MOST_BEATS, BOUNDARY_BYTES // self._word_bytes)
        bursts = {}
        queues = {}
        queued = data.StructLayout({"address": port.address_width, "beats": range(longest)})
        for channel, requests in (("ar", memory.read), ("aw", memory.write)):
            cut = m.submodules[f"{channel}_bursts"] = Bursts(port.address_width, LENGTH_WIDTH, longest)
            queue = m.submodules[f"{channel}_queue"] = fifo.SyncFIFOBuffered(
                width=queued.size, depth=OUTSTANDING
            )
            entry, shown = data.View(queued, queue.w_data), data.View(queued, queue.r_data)
            m.d.comb += [
                cut.request.valid.eq(requests.valid),
                cut.request.p.address.eq(requests.p.address),
                cut.request.p.count.eq(requests.p.length),
                requests.ready.eq(cut.request.ready),
                entry.address.eq(cut.bursts.p.address),
                entry.beats.eq(cut.bursts.p.length - 1),
                getattr(self, f"m_axi_{channel}valid").eq(queue.r_rdy),
                getattr(self, f"m_axi_{channel}addr").eq(shown.address * self._word_bytes),
                getattr(self, f"m_axi_{channel}len").eq(shown.beats),
                getattr(self, f"m_axi_{channel}size").eq((self._word_bytes - 1).bit_length()),
                getattr(self, f"m_axi_{channel}burst").eq(INCREMENTING),
                queue.r_en.eq(getattr(self, f"m_axi_{channel}ready")),
            ]
            bursts[channel], queues[channel] = cut, queue
        m.d.comb += [
            bursts["ar"].bursts.ready.eq(queues["ar"].w_rdy),
            queues["ar"].w_en.eq(bursts["ar"].bursts.valid),
            memory.data.valid.eq(self.m_axi_rvalid),
            memory.data.payload.eq(self.m_axi_rdata),
            self.m_axi_rready.eq(memory.data.ready),
        ]

        # Words do not wait for their burst to be taken: memory may wait for them first.
        cut = bursts["aw"].bursts
        m.submodules.lengths = lengths = fifo.SyncFIFOBuffered(width=queued.size, depth=OUTSTANDING)
        m.submodules.lasts = lasts = fifo.SyncFIFOBuffered(width=1, depth=2 * OUTSTANDING)
        beat = Signal(range(longest))
        m.d.comb += [
            cut.ready.eq(queues["aw"].w_rdy & lengths.w_rdy & lasts.w_rdy),
            *(queue.w_en.eq(cut.valid & cut.ready) for queue in (queues["aw"], lengths, lasts)),
            lengths.w_data.eq(queues["aw"].w_data),
            lasts.w_data.eq(bursts["aw"].last),
            self.m_axi_wvalid.eq(memory.written.valid & lengths.r_rdy),
            self.m_axi_wdata.eq(memory.written.payload),
            self.m_axi_wstrb.eq(-1),
            self.m_axi_wlast.eq(beat == data.View(queued, lengths.r_data).beats),
            memory.written.ready.eq(self.m_axi_wready & lengths.r_rdy),
            lengths.r_en.eq(self.m_axi_wvalid & self.m_axi_wready & self.m_axi_wlast),
        ]
        with m.If(self.m_axi_wvalid & self.m_axi_wready):
            m.d.sync += beat.eq(beat + 1)
            with m.If(self.m_axi_wlast):
                m.d.sync += beat.eq(0)
        m.d.comb += [
            self.m_axi_bready.eq(lasts.r_rdy),
            lasts.r_en.eq(self.m_axi_bvalid),
            memory.done.eq(self.m_axi_bvalid & lasts.r_rdy & lasts.r_data),
        ]
        refused_read = self.m_axi_rvalid & (self.m_axi_rresp != Response.OKAY)
        refused_write = self.m_axi_bvalid & (self.m_axi_bresp != Response.OKAY)
        with m.If(refused_read | refused_write):
            m.d.sync += self.fault.eq(1)
        return m


class AxiMemoryUser(wiring.Component):
    """A component with a port `memory`, whose other ports stay as they are, with that memory on AXI4."""

    def __init__(self, user: wiring.Component):
        self._user = user
        self._adapter = AxiMemory(user.signature.members["memory"].signature)
        axi = self._adapter.signature.members
        super().__init__(
            {name: member for name, member in user.signature.members.items() if name != "memory"}
            | {name: member for name, member in axi.items() if name != "memory"}
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.user = user = self._user
        m.submodules.adapter = adapter = self._adapter
        wiring.connect(m, user.memory, adapter.memory)
        inside = {
            path: value
            for component in (user, adapter)
            for path, _, value in component.signature.flatten(component)
            if path[0] != "memory"
        }
        for path, member, value in self.signature.flatten(self):
            sink, driver = (inside[path], value) if member.flow is wiring.In else (value, inside[path])
            m.d.comb += sink.eq(driver)
        return m
