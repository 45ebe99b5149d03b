"""Joiners as shared libraries: gateware compiled by Verilator and driven in this process.

`load(parameters)` builds, or finds in the cache, the library of one configuration; `Library.open()`
makes a simulated device of it; `Model.run()` feeds the device words and returns what came out.
"""

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hw import netlist, tools, verilog
from hw.cache import cache_directory, locked
from hw.dimension import Dimension
from hw.errors import DeviceError, ParameterError, ToolError
from hw.joiner import memory_port
from hw.memory_port import MemoryPort
from hw.parameters import Parameters
from hw.socket import COUNTERS_LAYOUT, RESULT_LAYOUT, Socket, Tag
from hw.words import pack, unpack

from .dram import DDR, Timing
from .shipped import check_can_build, shipped
from .wrapper import wrapper

#: What is compiled with the gateware.
HARNESS = tuple(Path(__file__).with_name(name) for name in ("harness.cpp", "dram.h", "port.h"))
#: Of what writes Verilog, as it is imported: a file that changes later does not change this process.
_WRITERS = hashlib.sha256(
    b"".join(source.read_bytes() for source in sorted(Path(verilog.__file__).parent.glob("*.py")))
)
#: How long a build may take, and how long to wait for another process that builds the same library.
BUILD_SECONDS = 900

_VERILATOR_FLAGS = (
    *("--cc", "--exe", "--build", "--Mdir", "build", "-o", "top.so", "--top-module", "harness"),
    *("--prefix", "Vtop", "-O3", "--x-assign", "fast", "--x-initial", "fast"),
    # Cores share one copy of their code: it builds five times faster and runs no slower.
    "-fno-inline",
    # Amaranth's Verilog leaves out cases that keep a value, and lets Verilog widen operands.
    "-Wno-lint",
    # Several libraries live in one process: each must keep its symbols to itself.
    *("-CFLAGS", "-fPIC -fvisibility=hidden -fno-gnu-unique -I..", "-LDFLAGS", "-shared"),
    *("-MAKEFLAGS", "OPT_FAST=-O2", "-MAKEFLAGS", "OPT_SLOW=-O0", "-MAKEFLAGS", "OPT_GLOBAL=-O1"),
)
#: What suits a netlist better: thousands of cells in one place, each a moment's work.
NETLIST_FLAGS = ("-finline", "-MAKEFLAGS", "OPT_FAST=-O1")
# Pauses let Python handle signals, and see the 32-bit counters often enough to notice each wrap.
PAUSE_CYCLES = 1 << 16
_ROOM = 1 << 14
_NEVER = 1 << 62


class _Job(ctypes.Structure):
    """`Job` of harness.cpp."""

    _fields_ = [
        ("words", ctypes.c_void_p),
        ("word_count", ctypes.c_uint64),
        ("word_next", ctypes.c_uint64),
        ("results", ctypes.c_void_p),
        ("result_room", ctypes.c_uint64),
        ("result_count", ctypes.c_uint64),
        ("marks", ctypes.c_uint64),
        ("mark_mask", ctypes.c_void_p),
        ("mark_value", ctypes.c_void_p),
        ("cycle", ctypes.c_uint64),
        ("cycle_limit", ctypes.c_uint64),
        ("patience", ctypes.c_uint64),
        ("taken", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
        ("activity", ctypes.c_void_p),
        ("cores", ctypes.c_uint32),
        ("stall_in", ctypes.c_uint32),
        ("stall_out", ctypes.c_uint32),
        ("valid", ctypes.c_uint32),
        ("ready", ctypes.c_uint32),
    ]


DONE, PAUSED, HUNG = range(3)


@dataclass(frozen=True)
class Run:
    """What one `Model.run` brought.

    `cycles` is how long this run took and `counters` what they stand at since the model was opened.
    `taken` and `given` are the cycles, from 0 at the start of the run, at which each word went in and
    each result came out; `activity[b, k]` counts the cycles of bucket `b` in which core `k` found a pair.
    """

    results: np.ndarray
    cycles: int
    counters: dict[str, int]
    taken: np.ndarray | None
    given: np.ndarray | None
    activity: np.ndarray | None


class Library:
    """The compiled gateware of one configuration."""

    def __init__(self, path: Path, name: str, cores: int):
        self.path = path
        self.name = name
        self.cores = cores
        try:
            self._code = ctypes.CDLL(str(path))
        except OSError as error:
            raise ToolError(f"sim {name}: the library does not load on this machine: {error}") from None
        self._code.touchline_open.restype = ctypes.c_void_p
        self._code.touchline_open.argtypes = [ctypes.c_void_p]
        for function in ("close", "seed", "counters", "run"):
            getattr(self._code, f"touchline_{function}").argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._code.touchline_close.argtypes = [ctypes.c_void_p]
        self._code.touchline_seed.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        shape = (ctypes.c_uint32 * 3)()
        self._code.touchline_shape(shape)
        self.tuple_words, self.result_words, self._counter_words = shape

    def open(self, timing: Timing = DDR) -> "Model":
        """A device of its own, fresh from reset; its memory, if it has any, costs what `timing` says."""
        return Model(self, timing)


class Model:
    """One simulated device. A context manager; after an error in `run` it is closed."""

    def __init__(self, library: Library, timing: Timing):
        self.library = library
        self._code = library._code
        native = timing.native()
        self._model = self._code.touchline_open(ctypes.byref(native))
        self._raw = np.zeros((1, library._counter_words), np.uint32)
        self._counters = dict.fromkeys(COUNTERS_LAYOUT.members, 0)
        # A mark is recognised by its tag, and nothing but the layout says where that is.
        self._mark_mask = pack(RESULT_LAYOUT, {"tag": (1 << RESULT_LAYOUT["tag"].width) - 1}, 1)
        self._mark_value = pack(RESULT_LAYOUT, {"tag": Tag.MARK.value}, 1)

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __del__(self):
        self.close()

    def close(self) -> None:
        """Frees the device; closing twice is harmless."""
        model, self._model = self._model, None
        if model:
            self._code.touchline_close(model)

    def run(
        self,
        words: np.ndarray,
        *,
        marks: int = 0,
        stall_seed: int | None = None,
        stall_in: int = 0,
        stall_out: int = 0,
        patience: int = 1_000_000,
        timestamps: bool = False,
        bucket: int | None = None,
        at: np.ndarray | None = None,
    ) -> Run:
        """Feeds all `words` (`uint32[n, tuple_words]`); ends when they are taken and `marks` marks are out.

        Results that are still inside then come out in later runs; the clock stands still in between.
        With `stall_seed`, words wait and results are refused in random cycles, with chances of
        `stall_in` and `stall_out` in 256. `timestamps` asks for `Run.taken` and `Run.given`, `bucket`
        for `Run.activity` in buckets of so many cycles. With `at`, cycles that rise, word `k` is not
        offered before `at[k]`. When neither stream moves for `patience` cycles, the run ends in a
        DeviceError.
        """
        name = self.library.name
        if not self._model:
            raise DeviceError(f"sim {name}: the model is closed")
        shape = (len(words), self.library.tuple_words)
        if words.dtype != np.uint32 or words.shape != shape:
            raise ParameterError(
                f"sim {name}: words must be uint32 of shape (n, {shape[1]}), "
                f"not {words.dtype} of {words.shape}"
            )
        for option, value in (("stall_in", stall_in), ("stall_out", stall_out)):
            if not 0 <= value < 256:
                raise ParameterError(f"sim {name}: {option} must be from 0 to 255, not {value!r}")
            if value and stall_seed is None:
                raise ParameterError(f"sim {name}: {option}={value!r} needs a stall_seed")
        if at is not None and (len(at) != len(words) or (np.diff(at) < 0).any()):
            raise ParameterError(f"sim {name}: at must be {len(words)} cycles that rise, not {at}")
        if at is not None and bucket:
            raise ParameterError(f"sim {name}: bucket must not be given with at, not {bucket}")
        words = np.ascontiguousarray(words)
        if stall_seed is not None:
            self._code.touchline_seed(self._model, stall_seed)
        taken = np.zeros(len(words), np.uint64) if timestamps else None
        job = _Job(
            words=words.ctypes.data,
            word_count=len(words),
            marks=marks,
            mark_mask=self._mark_mask.ctypes.data,
            mark_value=self._mark_value.ctypes.data,
            patience=patience,
            taken=taken.ctypes.data if timestamps else None,
            cores=self.library.cores,
            stall_in=stall_in,
            stall_out=stall_out,
        )
        try:
            results, given, activity = self._finish(job, timestamps, bucket, at)
        except BaseException:
            self.close()  # a word may be on offer, and only its owner could offer it again
            raise
        return Run(results, job.cycle, dict(self._counters), taken, given, activity)

    def _finish(self, job: _Job, timestamps: bool, bucket: int | None, at: np.ndarray | None):
        """Calls the harness until the job is done; returns results, their cycles, and activity."""
        marks = job.marks
        results, given, activity = [], [], []
        room = np.empty((_ROOM, self.library.result_words), np.uint32)
        cycles = np.empty(_ROOM, np.uint64)
        job.results, job.result_room = room.ctypes.data, _ROOM
        job.given = cycles.ctypes.data if timestamps else None
        status = PAUSED
        early = at is not None  # words are not due; more marks than ever come keep the clock running
        job.marks += _NEVER * early
        while status == PAUSED:
            step = bucket or PAUSE_CYCLES
            if early:
                job.word_count = int(np.searchsorted(at, job.cycle, "right"))
                early = job.word_count < len(at)
                if not early:
                    job.marks = max(job.marks - _NEVER, 0)
                job.cycle_limit = int(at[job.word_count]) if early else job.cycle
            if job.cycle == job.cycle_limit:
                job.cycle_limit += step
                if bucket:
                    activity.append(np.zeros(self.library.cores, np.uint32))
                    job.activity = activity[-1].ctypes.data
            status = self._code.touchline_run(self._model, ctypes.byref(job))
            results.append(room[: job.result_count].copy())
            given.append(cycles[: job.result_count].copy())
            self._count()
        if status == HUNG:
            stream = "tuples" if job.word_next < job.word_count else "results"
            raise DeviceError(
                f"sim {self.library.name}: hang: no transfer on {stream} for {job.patience} cycles "
                f"({job.word_next} of {job.word_count} words taken, valid {_level(job.valid)}, "
                f"ready {_level(job.ready)}; {marks - job.marks} of {marks} marks seen)"
            )
        return (
            np.concatenate(results),
            np.concatenate(given) if timestamps else None,
            np.array(activity) if bucket else None,
        )

    def _count(self) -> None:
        before = self._raw.copy()
        self._code.touchline_counters(self._model, self._raw.ctypes.data)
        for name in self._counters:
            delta = unpack(COUNTERS_LAYOUT, self._raw, name) - unpack(COUNTERS_LAYOUT, before, name)
            self._counters[name] += int(delta[0])


def _level(bit: int) -> str:
    return "high" if bit else "low"


@functools.cache
def load(parameters: Parameters, family: str | None = None) -> Library:
    """The library of one configuration: it came with the code, or is in the cache, or is built now.

    With a `family` of chips it is made of the netlist that synthesis makes for it.
    """
    return Library(library_path(parameters, family), parameters.name, parameters.cores)


def library_path(parameters: Parameters, family: str | None = None) -> Path:
    """Where the library of one configuration is; see `load`."""
    if carried := shipped(parameters, family):
        return carried
    try:
        check_can_build()
        tools.verilator(), tools.compiler()  # first, because writing Verilog takes seconds
    except ToolError as error:
        device = f"sim:{parameters.architecture}?{parameters.options()}"
        netlist = f"&netlist={family}" if family else ""
        raise ToolError(
            f"{device}{netlist} has no library in this copy of Touchline, and none can be built here "
            f"({error}); `make dist DEVICES=...` packs the libraries of the devices that it names"
        ) from None
    text, flags = _emitted(parameters, family), NETLIST_FLAGS if family else ()
    return build(text, parameters.name, parameters.dims, parameters.cores, flags, memory_port(parameters))


def _emitted(parameters: Parameters, family: str | None = None) -> str:
    """The joiner's Verilog, kept by the digest of what writes it: writing takes seconds."""
    tool = f"yosys {tools.yosys().version} {family}" if family else ""
    digest = _WRITERS.copy()
    digest.update(f"{parameters!r} {importlib.metadata.version('amaranth')} {tool}".encode())
    kept = cache_directory() / f"{parameters.name}-{digest.hexdigest()[:16]}.v"
    if not kept.exists():
        text = verilog.emit(parameters)
        if family:
            text = netlist.synthesise(text, parameters.name, family).verilog
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, suffix=".tmp", delete=False) as file:
            file.write(text)
        os.replace(file.name, kept)
    return kept.read_text()


def build(
    verilog_text: str,
    name: str,
    dims: tuple[Dimension, ...],
    cores: int,
    flags: Sequence[str] = (),
    memory: MemoryPort | None = None,
) -> Path:
    """The library of a joiner, the module `name` in `verilog_text`; safe to call in many processes."""
    ports = dict(Socket(dims, cores).members)
    own_flags = list(flags)
    if memory:
        ports["memory"] = Out(memory)
        sizes = {"MEMORY_WORDS": 1 << memory.address_width, "ADDRESS_WIDTH": memory.address_width}
        own_flags += [part for size in sizes.items() for part in ("-CFLAGS", "-D{}={}".format(*size))]
    return compiled(verilog_text + wrapper(wiring.Signature(ports), name), name, own_flags, HARNESS)


def compiled(
    verilog_text: str,
    name: str,
    own_flags: Sequence[str],
    harness: Sequence[Path],
    headers: Mapping[str, str] = {},
) -> Path:
    """The library, in the cache, of Verilog with a module `harness` and the files that drive it.

    `headers` are further files, by name, that those include.
    """
    verilator, compiler = tools.verilator(), tools.compiler()
    flags = [*_VERILATOR_FLAGS, *own_flags]
    texts = {path.name: path.read_text() for path in harness} | dict(headers)
    digest = hashlib.sha256()
    for part in (verilog_text, *texts.values(), verilator.version, compiler.version, *flags):
        digest.update(f"{len(part)}:{part}".encode())
    key = f"{name}-{digest.hexdigest()[:16]}"
    cache = cache_directory()
    library = cache / f"{key}.so"
    if library.exists():
        return library
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"{key}.lock", BUILD_SECONDS):
        if library.exists():
            return library
        for left_by_a_killed_builder in cache.glob(f"{key}.*.tmp"):
            shutil.rmtree(left_by_a_killed_builder, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f"{key}.", suffix=".tmp", dir=cache) as scratch:
            for file, text in {"gateware.sv": _without_zeros(simulable(verilog_text)), **texts}.items():
                (Path(scratch) / file).write_text(text)
            sources = [file for file in ("gateware.sv", *texts) if not file.endswith(".h")]
            arguments = [*flags, "-j", os.cpu_count() or 1, *sources]
            tools.run(verilator, arguments, cwd=Path(scratch), seconds=BUILD_SECONDS)
            os.replace(Path(scratch) / "build" / "top.so", library)
    return library


def simulable(verilog_text: str) -> str:
    """Verilog for a simulator: Yosys writes constants as `always @*`, which would never run."""
    return verilog_text.replace("always @*", "always_comb")


def _without_zeros(verilog_text: str) -> str:
    """Leaves out memories' initial zeros: here everything begins with them, and a line per row takes long."""
    zeros = r"^ *initial begin\n(?:.*\[\d+\] = \d+'[hd]0+;\n)+ *end\n"
    return re.sub(zeros, "", verilog_text, flags=re.MULTILINE)
