"""Compiled kernels: how functions become machine code, where that is kept, and how it uses the cores.

Machine code is kept in the cache (`~/.cache/touchline`, TOUCHLINE_CACHE or NUMBA_CACHE_DIR) by a digest of
the sources it came from, wherever they are, so that other processes, such as Spark's workers, load it instead
of compiling, also those that find the code in a zip file that each application has a copy of.
Kernels let go of Python's lock, and plain threads run them: nothing has to be set up before a fork, and one
thread costs nothing extra.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numba
from llvmlite import ir
from numba.core import caching, cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from hw.cache import cache_directory
from hw.errors import ParameterError


def _digest() -> str:
    """Of every module with kernels: Numba would not see that a kernel called from another file changed."""
    files = sorted(resources.files(__package__).iterdir(), key=lambda file: file.name)
    sources = (file.read_bytes() for file in files if file.name.endswith(".py"))
    return hashlib.sha256(
        b"".join(text for text in sources if b"numba" in text or b"@compiled" in text)
    ).hexdigest()[:16]


class _Kept(caching.UserProvidedCacheLocator):
    """Where Numba keeps the kernels of this package: by their digest. Its own places go by path."""

    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_directory() / "kernels") / _digest()

    def get_cache_path(self) -> str:
        return str(self.folder)

    def get_source_stamp(self) -> str:
        return self.folder.name

    @classmethod
    def from_function(cls, py_func: Callable, py_file: str) -> "_Kept | None":
        if py_func.__module__.rpartition(".")[0] != __package__:
            return None
        kept = cls.__new__(cls)
        kept._lineno = py_func.__code__.co_firstlineno
        try:
            kept.ensure_cache_path()
        except OSError:
            return None
        return kept


caching.CacheImpl._locator_classes.insert(0, _Kept)

#: Makes a function a kernel.
compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
#: Makes a function a part of the kernels that call it: a call with arrays costs more than a short search.
inlined = numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)


def fetching(nearness: int) -> Callable:
    """Makes a procedure: the cache line of an element is brought in, while what follows goes on.

    3 is into all caches, 2 into all but the nearest.
    """

    @intrinsic
    def fetch(typing, array, index):
        def generate(context, builder, signature, arguments):
            kind = signature.args[0]
            view = context.make_array(kind)(context, builder, arguments[0])
            place = cgutils.get_item_pointer(context, builder, kind, view, [arguments[1]], wraparound=False)
            place = builder.bitcast(place, ir.IntType(8).as_pointer())
            number = ir.IntType(32)
            called = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
            function = cgutils.get_or_insert_function(builder.module, called, "llvm.prefetch.p0")
            # To be read; how near; data.
            builder.call(function, [place, number(0), number(nearness), number(1)])
            return context.get_dummy_value()

        return types.void(array, types.intp), generate

    return fetch


@intrinsic
def popcount(typing, word):
    """How many bits of a word are set."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


#: What vectors are read from.
UNSIGNED = (types.uint32, types.uint64)


def counting(count: int, test: str) -> Callable:
    """Makes a function: how many of `count` elements of an array from an index on pass a test.

    They lie side by side and are compared with a value all at once; in a loop the compiler would take them
    one by one. The test is `<` or `<=`, of unsigned numbers.
    """

    @intrinsic
    def passing(typing, array, index, value):
        def generate(context, builder, signature, arguments):
            elements = _loaded(context, builder, signature, arguments, count)
            tested = builder.icmp_unsigned(test, elements, _repeated(builder, arguments[2], count))
            bits = builder.ctpop(builder.bitcast(tested, ir.IntType(count)))
            return builder.zext(bits, ir.IntType(64))

        return types.int64(_side_by_side(array, UNSIGNED), types.intp, types.uint64), generate

    return passing


def widening(count: int) -> Callable:
    """Makes a procedure: `count` elements of an array from an index on, each raised by a base, go to another.

    The other's elements have 64 bits, and they go to a place in it, all at once.
    """

    @intrinsic
    def write(typing, array, index, base, target, place):
        def generate(context, builder, signature, arguments):
            elements = _loaded(context, builder, signature, arguments, count)
            raised = builder.add(elements, _repeated(builder, arguments[2], count))
            builder.store(raised, *_vector(context, builder, signature, arguments, 3, count))
            return context.get_dummy_value()

        array, target = _side_by_side(array, UNSIGNED), _side_by_side(target, (types.int64,))
        return types.void(array, types.intp, types.int64, target, types.intp), generate

    return write


def _side_by_side(array: types.Array, kinds: tuple) -> types.Array:
    """Refuses arrays of other kinds of elements, which are widened in another way, and those with gaps."""
    if array.layout != "C" or array.dtype not in kinds:
        names = " or ".join(map(str, kinds))
        raise TypingError(f"vectors are of {names}, side by side in memory, not of {array}")
    return array


def _vector(context, builder, signature, arguments, which: int, count: int) -> tuple:
    """Where elements of an argument lie, from the index on that follows it, and how they are aligned."""
    kind = signature.args[which]
    view = context.make_array(kind)(context, builder, arguments[which])
    place = cgutils.get_item_pointer(context, builder, kind, view, [arguments[which + 1]], wraparound=False)
    vector = ir.VectorType(ir.IntType(kind.dtype.bitwidth), count)
    return builder.bitcast(place, vector.as_pointer()), kind.dtype.bitwidth // 8


def _loaded(context, builder, signature, arguments, count: int):
    """Elements of the first argument, widened to 64 bits."""
    place, aligned = _vector(context, builder, signature, arguments, 0, count)
    return builder.zext(builder.load(place, align=aligned), ir.VectorType(ir.IntType(64), count))


def _repeated(builder, value, count: int):
    """A vector of `count` times a value."""
    vector = ir.VectorType(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), places)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def checked_threads(threads: int | None) -> int:
    """`threads`, or as many as there are cores."""
    if threads is None:
        return cores()
    if type(threads) is not int or threads < 1:
        raise ParameterError(f"threads must be a positive integer or None, not {threads!r}")
    return threads


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="touchline")


def stretches(count: int, parts: int) -> Iterator[tuple[int, int]]:
    """Where so many stretches of about equal length begin and end; of fewer things there are fewer."""
    parts = min(parts, count)
    return pairwise(count * k // max(parts, 1) for k in range(parts + 1))


def spread(function: Callable, parts: Iterable[tuple], threads: int) -> list:
    """What `function` returns for each tuple of arguments; `threads` of them run at a time."""
    parts = list(parts)
    if threads == 1 or len(parts) < 2:
        return [function(*part) for part in parts]
    # A fork has no threads of its own, so the pool belongs to a process.
    return list(_pool(threads, os.getpid()).map(lambda part: function(*part), parts))
