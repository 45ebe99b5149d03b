"""Any component as a shared library: its streams fed from arrays, its memory ports served by a model.

::

    inputs ---> [ component ] ---> outputs
                   |    ^
                [ memory ] <-- arrays

`load(make, name)` builds what `make()` makes, or finds it in the cache; `Library.open()` makes a model with a
memory of its own; `Model.run()` feeds its input streams and returns what its output streams brought.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import stream, wiring

from hw.errors import DeviceError, ParameterError
from hw.memory_port import MemoryPort
from hw.verilog import whole
from hw.words import WORD

from .dram import DDR, Timing, Traffic
from .library import DONE, PAUSE_CYCLES, PAUSED, compiled
from .wrapper import wrapper

#: What is compiled with the gateware.
HARNESS = tuple(Path(__file__).with_name(name) for name in ("engine.cpp", "dram.h", "port.h"))
_ROOM = 1 << 14


class _Stream(ctypes.Structure):
    """`Stream` of engine.cpp."""

    _fields_ = [
        ("rows", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("next", ctypes.c_uint64),
        ("wanted", ctypes.c_uint64),
        ("cycles", ctypes.c_void_p),
    ]


class _Job(ctypes.Structure):
    """`Job` of engine.cpp."""

    _fields_ = [
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("cycle", ctypes.c_uint64),
        ("cycle_limit", ctypes.c_uint64),
        ("patience", ctypes.c_uint64),
        ("stall_in", ctypes.c_uint32),
        ("stall_out", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class Run:
    """What one `Model.run` brought: rows of each output, and the cycle at which each row was transferred."""

    outputs: dict[str, np.ndarray]
    cycles: int
    taken: dict[str, np.ndarray]
    given: dict[str, np.ndarray]


class Library:
    """The compiled gateware of one component. `inputs` and `outputs` tell the words of their rows."""

    def __init__(self, path: Path, name: str, ports: "_Ports"):
        self.name = name
        self._ports = ports
        self.inputs, self.outputs, self.memories = ports.inputs, ports.outputs, list(ports.memories)
        self._code = ctypes.CDLL(str(path))
        self._code.engine_open.restype = ctypes.c_void_p
        self._code.engine_memory.restype = ctypes.c_void_p
        self._code.engine_memory.argtypes = [ctypes.c_void_p]
        self._code.engine_close.argtypes = [ctypes.c_void_p]
        self._code.engine_seed.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self._code.engine_traffic.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
        self._code.engine_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def open(self, timing: Timing = DDR) -> "Model":
        """A component of its own, fresh from reset, with an empty memory that costs what `timing` says."""
        return Model(self, timing)


class Model:
    """One component in simulation. A context manager; after an error in `run` it is closed.

    `memory` is what is behind its memory ports, `uint32[words, words of 32 bits in one]`: fill and read it
    between runs.
    """

    def __init__(self, library: Library, timing: Timing):
        self.library = library
        self._code = library._code
        native = timing.native()
        self._model = self._code.engine_open(ctypes.byref(native))
        ports = library._ports
        size = ports.memory_words * ports.memory_width
        address = self._code.engine_memory(self._model)
        flat = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint32)), (size,))
        self.memory = flat.reshape(ports.memory_words, ports.memory_width)

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __del__(self):
        self.close()

    def close(self) -> None:
        """Frees the component and its memory; closing twice is harmless."""
        model, self._model, self.memory = self._model, None, None
        if model:
            self._code.engine_close(model)

    def traffic(self, port: str = "memory") -> Traffic:
        """What has gone through a memory port."""
        traffic = Traffic()
        number = self.library.memories.index(port)
        self._code.engine_traffic(self._model, number, ctypes.byref(traffic))
        return traffic

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        wanted: Mapping[str, int],
        *,
        stall_seed: int | None = None,
        stall_in: int = 0,
        stall_out: int = 0,
        patience: int = 100_000,
    ) -> Run:
        """Feeds rows, as `hw.words.pack` makes them; ends when they are taken and all `wanted` ones came.

        With `stall_seed`, all that goes to the component or comes from it, memory included, waits in random
        cycles, with chances of `stall_in` and `stall_out` in 256. When nothing moves for `patience` cycles,
        the run ends in a DeviceError.
        """
        library = self.library
        for what, given, known in (("input", inputs, library.inputs), ("output", wanted, library.outputs)):
            if unknown := set(given) - set(known):
                raise ParameterError(
                    f"engine {library.name}: no {what} {unknown.pop()!r}; accepted: {', '.join(known)}"
                )
        rows = {name: _checked(library, name, inputs.get(name)) for name in library.inputs}
        taken = {name: np.zeros(len(rows[name]), np.uint64) for name in rows}
        rooms = {name: np.empty((_ROOM, words), np.uint32) for name, words in library.outputs.items()}
        times = {name: np.empty(_ROOM, np.uint64) for name in rooms}
        outputs = {name: [] for name in rooms}
        given = {name: [] for name in rooms}
        sources = (_Stream * (len(rows) + 1))(
            *(_Stream(rows[n].ctypes.data, len(rows[n]), 0, 0, taken[n].ctypes.data) for n in rows)
        )
        sinks = (_Stream * (len(rooms) + 1))(
            *(_Stream(rooms[n].ctypes.data, _ROOM, 0, wanted.get(n, 0), times[n].ctypes.data) for n in rooms)
        )
        job = _Job(ctypes.addressof(sources), ctypes.addressof(sinks), 0, 0, patience, stall_in, stall_out)
        if stall_seed is not None:
            self._code.engine_seed(self._model, stall_seed)
        status = PAUSED
        while status == PAUSED:
            if job.cycle == job.cycle_limit:
                job.cycle_limit += PAUSE_CYCLES
            status = self._code.engine_run(self._model, ctypes.byref(job))
            for name, sink in zip(rooms, sinks):
                outputs[name].append(rooms[name][: sink.next].copy())
                given[name].append(times[name][: sink.next].copy())
                sink.wanted -= min(sink.next, sink.wanted)
                sink.next = 0
        if status != DONE:
            left = ", ".join(f"{s.count - s.next} rows of {n} to be taken" for n, s in zip(rows, sources))
            more = ", ".join(f"{s.wanted} rows of {n} to come" for n, s in zip(rooms, sinks))
            self.close()
            raise DeviceError(
                f"engine {library.name}: hang: nothing moved for {patience} cycles (cycle {job.cycle}; "
                f"{left}; {more})"
            )
        return Run(
            {name: np.concatenate(parts) for name, parts in outputs.items()},
            job.cycle,
            taken,
            {name: np.concatenate(parts) for name, parts in given.items()},
        )


def _checked(library: Library, name: str, rows: np.ndarray | None) -> np.ndarray:
    words = library.inputs[name]
    if rows is None:
        rows = np.empty((0, words), np.uint32)
    if rows.dtype != np.uint32 or rows.shape != (len(rows), words):
        raise ParameterError(
            f"engine {library.name}: rows of {name} must be uint32 of shape (n, {words}), "
            f"not {rows.dtype} of {rows.shape}"
        )
    return np.ascontiguousarray(rows)


@dataclass(frozen=True)
class _Ports:
    """The ports of a component: words of the rows of its streams, and its memory ports."""

    inputs: dict[str, int]
    outputs: dict[str, int]
    memories: dict[str, MemoryPort]

    @classmethod
    def of(cls, signature: wiring.Signature) -> "_Ports":
        inputs, outputs, memories = {}, {}, {}
        for name, member in signature.members.items():
            if member.is_port:
                if member.flow is wiring.In:
                    raise ParameterError(
                        f"input {name!r} must be a stream or a memory port, not a plain signal"
                    )
            elif isinstance(member.signature, MemoryPort):
                memories[name] = member.signature
            elif isinstance(member.signature, stream.Signature):
                streams = inputs if member.flow is wiring.In else outputs
                streams[name] = -(-Shape.cast(member.signature.members["payload"].shape).width // WORD)
            else:
                raise ParameterError(f"port {name!r} must be a stream or a memory port, not {member!r}")
        return cls(inputs, outputs, memories)

    @property
    def memory_words(self) -> int:
        return max((1 << port.address_width for port in self.memories.values()), default=1)

    @property
    def memory_width(self) -> int:
        return max((-(-port.width // WORD) for port in self.memories.values()), default=1)

    def header(self) -> str:
        """The text of ports.h."""
        lists = {"INPUTS": self.inputs, "OUTPUTS": self.outputs, "MEMORIES": self.memories}
        lines = [
            f"#define {list}(X) {' '.join(f'X({number}, {name})' for number, name in enumerate(names))}"
            for list, names in lists.items()
        ]
        address_width = max((port.address_width for port in self.memories.values()), default=0)
        sizes = {
            "MEMORY_WORDS": self.memory_words,
            "MEMORY_WIDTH": self.memory_width,
            "ADDRESS_WIDTH": address_width,
        }
        return "\n".join(lines + [f"#define {name} {value}" for name, value in sizes.items()]) + "\n"


def load(make: Callable[[], wiring.Component], name: str) -> Library:
    """The library of a component under a `name` of letters, digits and _; built unless it is in the cache."""
    made = []
    text = whole(lambda: made.append(make()) or made[0], name)
    signature = made[0].signature
    ports = _Ports.of(signature)
    text += wrapper(signature, name)
    return Library(compiled(text, name, (), HARNESS, {"ports.h": ports.header()}), name, ports)
