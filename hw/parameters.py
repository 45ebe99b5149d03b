"""What a joiner is built from: one frozen object that gateware, simulator and host all read."""

import hashlib
from dataclasses import dataclass, fields

from .dimension import Dimension, Test
from .errors import ParameterError
from .gate_word import MOST_INPUTS
from .hashing import hashable
from .instruction import BLOCK_WIDTH
from .ordering import Ordering

#: Two value bands, and a pair of one-sided dimensions that holds a count window or one more band.
DEFAULT_DIMS = (Dimension(Test.BAND), Dimension(Test.BAND), Dimension(Test.AT_LEAST), Dimension(Test.AT_MOST))
#: An OP-Block's tests are programmed, so that its dimensions are as general as can be, and all alike.
OPBLOCK_DIMS = (Dimension(Test.BAND),) * 4
ARCHITECTURES = ("handshake", "opblock", "bisort", "splitjoin", "lowlatency", "scalejoin")
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
#: The branches of a tree's node, and the physical inputs, whose number travels with a tuple.
OWN_LIMITS = {"fanout": (2, 16), "inputs": (1, MOST_INPUTS)}
#: What is left out of a URL: windows of 8 x 64K tuples, 4 of them in a word of memory.
BISORT_DEFAULTS = {"segment": 1 << 16, "lanes": 4, "buffer": 1 << 10}
#: Parameters that only some architectures have: which ones, and their values unless given.
OWN = {
    "fanout": (("splitjoin", "scalejoin"), 4),
    "ordering": (("splitjoin", "lowlatency"), Ordering()),
    "levels": (("bisort",), 1),
    "s_segment": (("lowlatency",), 0),
    "homes": (("lowlatency",), "robin"),
    "index": (("lowlatency",), 0),
    "inputs": (("scalejoin",), 2),
}
#: How tuples get their home nodes: in turn, or by a hash of the first dimension.
HOMES = ("robin", "hash")
#: The most buckets of an index.
INDEX_MOST = 1024
#: The most results that there may be room for where they are sorted: 8 MiB.
SORTED_MOST = 1 << 20


@dataclass(frozen=True)
class Parameters:
    """A joiner's architecture and sizes.

    `cores` segments of `segment` tuples per stream; `lanes` comparators per core and direction, so
    that a tuple takes `segment / lanes` cycles; `buffer` places of a core's queue of results. Of `bisort`,
    `cores` subwindows of `segment` tuples, `lanes` of them in a word of memory, and `buffer` in a batch.
    `fanout`, the branches of nodes of the trees, but for gates, `ordering`, that of the results, `levels`,
    the sorted arrays of the newest subwindow, and `inputs`, the physical ones, are None elsewhere. Of
    `lowlatency`, `s_segment` S tuples per node (0: as many as of R), how tuples get their `homes`, and the
    buckets of each node's `index` on the first dimension (0: none).
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
    s_segment: int | None = None
    homes: str | None = None
    index: int | None = None
    inputs: int | None = None

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
        limits = limits | {name: OWN_LIMITS[name] for name in OWN_LIMITS if getattr(self, name) is not None}
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
        if self.architecture == "lowlatency":
            self._check_lowlatency()
        if self.architecture == "opblock":
            if set(self.dims) != {Dimension(Test.BAND, self.dims[0].width)}:
                given = ",".join(map(str, self.dims))
                raise ParameterError(
                    f"dims of opblock must all be bands of one width, such as band32,band32, not {given}"
                )
            if self.cores > 1 << BLOCK_WIDTH:
                most = 1 << BLOCK_WIDTH
                raise ParameterError(f"cores of opblock must be at most {most}, not {self.cores}")

    def _check_lowlatency(self) -> None:
        highest = LIMITS["segment"][1]
        if type(self.s_segment) is not int or not 0 <= self.s_segment <= highest:
            raise ParameterError(f"s_segment must be an integer from 0 to {highest}, not {self.s_segment!r}")
        if self.s_segment == 0:
            object.__setattr__(self, "s_segment", self.segment)
        if self.homes not in HOMES:
            raise ParameterError(f"homes must be one of {', '.join(HOMES)}, not {self.homes!r}")
        sizes = (0, *(1 << k for k in range(1, INDEX_MOST.bit_length())))
        if type(self.index) is not int or self.index not in sizes:
            raise ParameterError(
                f"index must be 0 or a power of two from 2 to {INDEX_MOST}, not {self.index!r}"
            )
        if str(self.ordering) not in ("none", "tuples:1"):
            raise ParameterError(f"ordering of lowlatency must be none or tuples:1, not {self.ordering}")
        for name, value, plain in (("homes", self.homes, "robin"), ("index", self.index, 0)):
            if value != plain and not hashable(self.dims):
                raise ParameterError(
                    f"{name} {value} needs a first dimension of equality, such as equal32, not {self.dims[0]}"
                )
        if self.index and self.lanes != 1:
            raise ParameterError(f"lanes must be 1 with an index, not {self.lanes}")
        if self.ordering.every:
            tuples, results = self.sorter_size
            if tuples * results > SORTED_MOST:
                raise ParameterError(
                    f"ordering {self.ordering} must sort at most {SORTED_MOST} results, "
                    f"not {results} of each of {tuples} tuples: fewer cores, or smaller segments"
                )

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
            if name == "homes":
                values[name] = text
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
    def order(self) -> Ordering | None:
        """The order that results are promised to come in, where there is such a promise."""
        return Ordering("comparisons", 1) if self.architecture == "scalejoin" else self.ordering

    @property
    def capacity(self) -> int:
        """How many tuples of each stream the windows hold at least."""
        return min(self.windows)

    @property
    def windows(self) -> tuple[int, int]:
        """How many tuples of R and of S the windows hold at least.

        Where a hash decides on homes, all may have the same.
        """
        share = 1 if self.homes == "hash" else self.cores
        return share * self.segment, share * (self.s_segment or self.segment)

    @property
    def sorter_size(self) -> tuple[int, int]:
        """How many tuples may be under way where `lowlatency` sorts results, and room for how many of each.

        About as many tuples as come in until the first is through. Both are powers of two.
        """
        return 1 << (max(8, self.cores) - 1).bit_length(), 1 << (self.most - 1).bit_length()

    @property
    def most(self) -> int:
        """How many tuples of each stream a tuple may meet at most."""
        if self.architecture == "lowlatency":
            # Also those that have left the window and are still on their way through the chain.
            return max(*self.windows, 2 * self.cores + 2)
        if self.architecture != "bisort":
            return self.capacity
        # One more subwindow, each as full as a batch may make it, and a batch on either side.
        return (self.cores + 1) * (self.segment + self.buffer) + 2 * self.buffer
