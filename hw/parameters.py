"""What a joiner is built from: one frozen object that gateware, simulator and host all read."""

import hashlib
from dataclasses import dataclass, fields

from .dimension import Dimension, Test
from .errors import ParameterError
from .instruction import BLOCK_WIDTH
from .ordering import Ordering

#: Two value bands, and a pair of one-sided dimensions that holds a count window or one more band.
DEFAULT_DIMS = (Dimension(Test.BAND), Dimension(Test.BAND), Dimension(Test.AT_LEAST), Dimension(Test.AT_MOST))
#: An OP-Block's tests are programmed, so that its dimensions are as general as can be, and all alike.
OPBLOCK_DIMS = (Dimension(Test.BAND),) * 4
ARCHITECTURES = ("handshake", "opblock", "bisort", "splitjoin")
#: The least and the most of each number.
LIMITS = {"cores": (1, 1024), "segment": (1, 1024), "lanes": (1, 1024), "buffer": (2, 1024)}
#: Windows in memory are larger; a word of memory has `lanes` records, and batches are sorted by halves.
BISORT_LIMITS = {
    "cores": (1, 64),
    "segment": (1, 1 << 26),
    "lanes": (1, 16),
    "buffer": (2, 1 << 16),
    "levels": (1, 8),
}
#: The branches of a tree's node.
FANOUT_LIMITS = (2, 16)
#: What is left out of a URL: windows of 8 x 64K tuples, 4 of them in a word of memory.
BISORT_DEFAULTS = {"segment": 1 << 16, "lanes": 4, "buffer": 1 << 10}
#: Parameters that only some architectures have: which ones, and their values unless given.
OWN = {
    "fanout": (("splitjoin",), 4),
    "ordering": (("splitjoin",), Ordering()),
    "levels": (("bisort",), 1),
}


@dataclass(frozen=True)
class Parameters:
    """A joiner's architecture and sizes.

    `cores` segments of `segment` tuples per stream; `lanes` comparators per core and direction, so
    that a tuple takes `segment / lanes` cycles; `buffer` places of a core's queue of results. Of `bisort`,
    `cores` subwindows of `segment` tuples, `lanes` of them in a word of memory, and `buffer` in a batch.
    `fanout`, the branches of each node of the trees, `ordering`, that of the results, and `levels`, the
    sorted arrays of the newest subwindow, are None where there are none.
    """

    architecture: str = "handshake"
    cores: int = 8
    segment: int = 16
    lanes: int = 16
    buffer: int = 16
    dims: tuple[Dimension, ...] = DEFAULT_DIMS
    fanout: int | None = None
    ordering: Ordering | None = None
    levels: int | None = None

    def __post_init__(self):
        if self.architecture not in ARCHITECTURES:
            raise ParameterError(
                f"architecture must be one of {', '.join(ARCHITECTURES)}, not {self.architecture!r}"
            )
        for name, (architectures, default) in OWN.items():
            value = getattr(self, name)
            if self.architecture in architectures:
                object.__setattr__(self, name, default if value is None else value)
            elif value is not None:
                raise ParameterError(
                    f"{name} is a parameter of {', '.join(architectures)}, not of {self.architecture}"
                )
        limits = BISORT_LIMITS if self.architecture == "bisort" else LIMITS
        if self.fanout is not None:
            limits = limits | {"fanout": FANOUT_LIMITS}
        for name, (lowest, highest) in limits.items():
            value = getattr(self, name)
            if type(value) is not int or not lowest <= value <= highest:
                raise ParameterError(f"{name} must be an integer from {lowest} to {highest}, not {value!r}")
        if self.architecture == "bisort":
            for name, lowest in (("lanes", 1), ("buffer", 2 * self.lanes)):
                value = getattr(self, name)
                if value < lowest or value & (value - 1):
                    raise ParameterError(
                        f"{name} of bisort must be a power of two from {lowest} on, not {value}"
                    )
        elif self.segment % self.lanes:
            raise ParameterError(f"lanes must divide segment ({self.segment}), not {self.lanes!r}")
        if not isinstance(self.dims, tuple) or not 1 <= len(self.dims) <= 16:
            raise ParameterError(f"dims must be a tuple of 1 to 16 dimensions, not {self.dims!r}")
        for dim in self.dims:
            if not isinstance(dim, Dimension):
                raise ParameterError(f"dims must hold Dimension objects, not {dim!r}")
        if not isinstance(self.ordering, Ordering | None):
            raise ParameterError(f"ordering must be an Ordering, not {self.ordering!r}")
        if self.architecture == "opblock":
            if set(self.dims) != {Dimension(Test.BAND, self.dims[0].width)}:
                given = ",".join(map(str, self.dims))
                raise ParameterError(
                    f"dims of opblock must all be bands of one width, such as band32,band32, not {given}"
                )
            if self.cores > 1 << BLOCK_WIDTH:
                most = 1 << BLOCK_WIDTH
                raise ParameterError(f"cores of opblock must be at most {most}, not {self.cores}")

    @classmethod
    def from_options(cls, architecture: str, options: dict[str, str]) -> "Parameters":
        """Parameters from the text of a URL or a command line; `lanes` is `segment` unless given."""
        known = {field.name for field in fields(cls)} - {"architecture"}
        known -= {name for name, (having, _) in OWN.items() if architecture not in having}
        values = {}
        for name, text in options.items():
            if name not in known:
                raise ParameterError(f"unknown parameter {name!r}; accepted: {', '.join(sorted(known))}")
            if name == "ordering":
                values[name] = Ordering.parse(text)
                continue
            if name == "dims":
                values[name] = tuple(Dimension.parse(part) for part in text.split(","))
                continue
            try:
                values[name] = int(text)
            except ValueError:
                raise ParameterError(f"{name} must be an integer, not {text!r}") from None
        if architecture == "bisort":
            values = BISORT_DEFAULTS | values
        values.setdefault("lanes", values.get("segment", cls.segment))
        if architecture == "opblock":
            values.setdefault("dims", OPBLOCK_DIMS)
        return cls(architecture=architecture, **values)

    def options(self) -> str:
        """The text that `from_options` reads, as in a URL: `cores=8&segment=16&...`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        values["dims"] = ",".join(str(dim) for dim in self.dims)
        return "&".join(f"{name}={value}" for name, value in values.items() if value is not None)

    @property
    def name(self) -> str:
        """A short name that is unique to these parameters and fit for files and modules."""
        digest = hashlib.sha256(f"{self.architecture}?{self.options()}".encode()).hexdigest()[:8]
        return f"{self.architecture}_{self.cores}x{self.segment}l{self.lanes}_{digest}"

    @property
    def capacity(self) -> int:
        """How many tuples of each stream the windows hold at least."""
        return self.cores * self.segment

    @property
    def most(self) -> int:
        """How many tuples of each stream a tuple may meet at most."""
        if self.architecture != "bisort":
            return self.capacity
        # One more subwindow, each as full as a batch may make it, and a batch on either side.
        return (self.cores + 1) * (self.segment + self.buffer) + 2 * self.buffer
