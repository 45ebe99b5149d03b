"""Runs of a device: words in, results out, once more if it is lost, and what that took."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from hw.dealing import Dealer
from hw.errors import DeviceError, ParameterError
from hw.instruction import spelled
from hw.socket import Fault, Kind, Tag, tuple_layout
from hw.words import Results, unpack, unpack_results

from .device import Device, Exchange, LinkLost

#: Words per exchange while a stream slides through the device.
CHUNK = 1 << 16
#: How many stretches of time a watched run is cut into.
BUCKETS = 240
#: Faults whose value is an instruction of OP-Blocks.
_OF_INSTRUCTIONS = (Fault.ILLEGAL_INSTRUCTION, Fault.NO_SUCH_BLOCK)
#: How often a run is run again when its device was lost.
RETRIES = 3


@dataclass(frozen=True)
class Stats:
    """What a join took. Sums of the parts are the stats of the whole."""

    tuples: int = 0  #: rows that were joined, each counted where it is owned
    pairs: int = 0  #: rows of the result
    cycles: int = 0  #: clock cycles of the device; 0 behind a wire, where its clock is not seen
    comparisons: int = 0  #: by the device's comparators, those with empty places included
    stalls: int = 0  #: cycles in which results held the device up
    tiles: int = 0  #: runs of the device, each ended by a flush

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Stats)))


class Runner:
    """An open device; `spares` are devices like it that take over when it is lost."""

    def __init__(self, device: Device, spares: Sequence[Device] = ()):
        for spare in spares:
            if spare.parameters != device.parameters:
                raise ParameterError(
                    f"spare device {spare.url}: parameters must be {device.parameters.options()}, "
                    f"not {spare.parameters.options()}"
                )
        self.device = device
        self.spares = list(spares)

    def run(self, words: np.ndarray, *, watch: bool = False, count: int = 0) -> list[Exchange]:
        """Sends words that end with a mark, once more if the device is lost; returns what came back.

        With `watch`, activity is cut into stretches for a run of about `count` tuples. A device whose results
        do not come in the order that it promises is not to be trusted.
        """
        parameters = self.device.parameters
        expected = (count + parameters.capacity) * (parameters.segment // parameters.lanes)
        bucket = -(-expected // BUCKETS) if watch else None
        left = RETRIES
        dealer = Dealer(parameters)
        dealt = dealer.deal(words)
        while True:
            try:
                exchanges = [
                    self.device.exchange(
                        dealt[start : start + CHUNK], marks=int(start + CHUNK >= len(words)), bucket=bucket
                    )
                    for start in range(0, len(words), CHUNK)
                ]
            except LinkLost as lost:
                if not left:
                    raise
                left -= 1
                self._replace(lost)
                continue
            exchanges = [replace(one, results=dealer.restore(one.results)) for one in exchanges]
            self._check_order(words, exchanges)
            return exchanges

    def _check_order(self, words: np.ndarray, exchanges: list[Exchange]) -> None:
        """Holds the device to the order that it promises; ids of a run rise, and its windows begin empty."""
        parameters = self.device.parameters
        if parameters.order is None or not parameters.order.every:
            return
        layout = tuple_layout(parameters.dims)
        kind, id = unpack(layout, words, "kind"), unpack(layout, words, "id")
        results = unpack_results(np.concatenate([exchange.results for exchange in exchanges]))
        found = results.tag == Tag.PAIR.value
        r, s = (
            np.searchsorted(id[kind == side.value], ids[found])
            for side, ids in ((Kind.R, results.r_id), (Kind.S, results.s_id))
        )
        is_s = kind[(kind == Kind.R.value) | (kind == Kind.S.value)] == Kind.S.value
        broken = parameters.order.first_broken(is_s, r, s, parameters.cores, parameters.segment)
        if broken is not None:
            raise DeviceError(
                f"{self.device.url}: results must come in the order {parameters.order}, but pair "
                f"{broken} of {len(r)} comes after one that it should come before"
            )

    def _replace(self, lost: LinkLost) -> None:
        """Makes the device ready for another try, or takes the next spare that can be."""
        for device in (self.device, *self.spares):
            try:
                device.restart()
            except DeviceError:
                continue
            if device is not self.device:
                self.spares.remove(device)
                self.device = device
            return
        raise lost

    def account(self, exchange: Exchange) -> Stats:
        """What an exchange took; a device that lost a live tuple is not to be trusted."""
        took = exchange.counters
        if took["live_evictions"]:
            raise DeviceError(
                f"{self.device.url}: {took['live_evictions']} tuples left their window while others could "
                "still meet them; accepted: 0"
            )
        parameters = self.device.parameters
        return Stats(
            cycles=exchange.cycles,
            comparisons=took["steps"] * parameters.cores * parameters.lanes,
            stalls=took["stalls"],
            tiles=exchange.marks,
        )

    def results(self, exchange: Exchange) -> Results:
        """The results of an exchange; one that the device complains in is an error."""
        results = unpack_results(exchange.results)
        wrong = np.flatnonzero(results.tag == Tag.ERROR.value)
        if len(wrong):
            fault, value = int(results.fault[wrong[0]]), int(results.value[wrong[0]])
            what = spelled(value) if Fault(fault) in _OF_INSTRUCTIONS else f"value {value}"
            raise DeviceError(f"{self.device.url}: the device reports {Fault(fault).name}, {what}")
        return results
