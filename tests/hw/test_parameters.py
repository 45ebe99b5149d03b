"""Parameters: what they accept, and the exact words in which they refuse."""

import pytest

from hw.dimension import Dimension
from hw.errors import ParameterError
from hw.ordering import Ordering
from hw.parameters import ARCHITECTURES, OPBLOCK_DIMS, Parameters


def refusal(function, *arguments, **options) -> str:
    with pytest.raises(ParameterError) as error:
        function(*arguments, **options)
    return str(error.value)


@pytest.mark.parametrize(
    "given, message",
    [
        (
            {"architecture": "handshaek"},
            f"architecture must be one of {', '.join(ARCHITECTURES)}, not 'handshaek'",
        ),
        ({"cores": 0}, "cores must be an integer from 1 to 1024, not 0"),
        ({"cores": 2.0}, "cores must be an integer from 1 to 1024, not 2.0"),
        ({"segment": 1025}, "segment must be an integer from 1 to 1024, not 1025"),
        ({"segment": True}, "segment must be an integer from 1 to 1024, not True"),
        ({"lanes": 3}, "lanes must divide segment (16), not 3"),
        ({"lanes": 32}, "lanes must divide segment (16), not 32"),
        ({"buffer": 1}, "buffer must be an integer from 2 to 1024, not 1"),
        ({"dims": ()}, "dims must be a tuple of 1 to 16 dimensions, not ()"),
        ({"dims": ("band32",)}, "dims must hold Dimension objects, not 'band32'"),
        (
            {"architecture": "opblock", "dims": (Dimension.parse("band32"), Dimension.parse("equal32"))},
            "dims of opblock must all be bands of one width, such as band32,band32, not band32,equal32",
        ),
        (
            {"architecture": "opblock", "dims": (Dimension.parse("band32"), Dimension.parse("band8"))},
            "dims of opblock must all be bands of one width, such as band32,band32, not band32,band8",
        ),
        (
            {"architecture": "opblock", "cores": 513, "dims": (Dimension.parse("band32"),)},
            "cores of opblock must be at most 512, not 513",
        ),
        ({"architecture": "bisort", "cores": 65}, "cores must be an integer from 1 to 64, not 65"),
        (
            {"architecture": "bisort", "segment": (1 << 26) + 1},
            "segment must be an integer from 1 to 67108864, not 67108865",
        ),
        ({"architecture": "bisort", "lanes": 3}, "lanes of bisort must be a power of two from 1 on, not 3"),
        ({"architecture": "bisort", "lanes": 32}, "lanes must be an integer from 1 to 16, not 32"),
        (
            {"architecture": "bisort", "lanes": 16, "buffer": 16},
            "buffer of bisort must be a power of two from 32 on, not 16",
        ),
        (
            {"architecture": "bisort", "lanes": 4, "buffer": 24},
            "buffer of bisort must be a power of two from 8 on, not 24",
        ),
        ({"fanout": 4}, "fanout is a parameter of splitjoin, scalejoin, not of handshake"),
        ({"architecture": "splitjoin", "inputs": 2}, "inputs is a parameter of scalejoin, not of splitjoin"),
        ({"architecture": "scalejoin", "inputs": 65}, "inputs must be an integer from 1 to 64, not 65"),
        (
            {"architecture": "opblock", "ordering": Ordering()},
            "ordering is a parameter of splitjoin, lowlatency, not of opblock",
        ),
        ({"architecture": "splitjoin", "fanout": 1}, "fanout must be an integer from 2 to 16, not 1"),
        ({"architecture": "splitjoin", "ordering": "none"}, "ordering must be an Ordering, not 'none'"),
        ({"index": 2}, "index is a parameter of lowlatency, not of handshake"),
        (
            {"architecture": "lowlatency", "s_segment": -1},
            "s_segment must be an integer from 0 to 1024, not -1",
        ),
        ({"architecture": "lowlatency", "homes": "any"}, "homes must be one of robin, hash, not 'any'"),
        (
            {"architecture": "lowlatency", "index": 12},
            "index must be 0 or a power of two from 2 to 1024, not 12",
        ),
        (
            {"architecture": "lowlatency", "index": 4.0},
            "index must be 0 or a power of two from 2 to 1024, not 4.0",
        ),
        (
            {"architecture": "lowlatency", "index": False},
            "index must be 0 or a power of two from 2 to 1024, not False",
        ),
        (
            {"architecture": "lowlatency", "homes": "hash"},
            "homes hash needs a first dimension of equality, such as equal32, not band32",
        ),
        (
            {"architecture": "lowlatency", "index": 4, "dims": (Dimension.parse("not_equal32"),)},
            "index 4 needs a first dimension of equality, such as equal32, not not_equal32",
        ),
        (
            {"architecture": "lowlatency", "index": 4, "dims": (Dimension.parse("equal32"),)},
            "lanes must be 1 with an index, not 16",
        ),
        (
            {"architecture": "lowlatency", "ordering": Ordering("tuples", 2)},
            "ordering of lowlatency must be none or tuples:1, not tuples:2",
        ),
        (
            {"architecture": "lowlatency", "cores": 65, "segment": 128, "ordering": Ordering("tuples", 1)},
            "ordering tuples:1 must sort at most 1048576 results, not 16384 of each of 128 tuples: "
            "fewer cores, or smaller segments",
        ),
    ],
)
def test_refused(given, message):
    assert refusal(Parameters, **given) == message


@pytest.mark.parametrize(
    "options, message",
    [
        ({"core": "8"}, "unknown parameter 'core'; accepted: buffer, cores, dims, lanes, segment"),
        ({"fanout": "2"}, "unknown parameter 'fanout'; accepted: buffer, cores, dims, lanes, segment"),
        ({"cores": "eight"}, "cores must be an integer, not 'eight'"),
        ({"cores": ""}, "cores must be an integer, not ''"),
        (
            {"dims": "band32,"},
            "Dimension must be [not_]equal|band|at_least|at_most and a width, such as band32, not ''",
        ),
    ],
)
def test_refused_options(options, message):
    assert refusal(Parameters.from_options, "handshake", options) == message


def test_options_round_trip():
    parameters = Parameters(cores=3, segment=6, lanes=2, buffer=4, dims=(Dimension.parse("not_equal9"),))
    options = dict(option.split("=") for option in parameters.options().split("&"))
    assert Parameters.from_options("handshake", options) == parameters


def test_trees_and_orders_are_of_some_architectures_only():
    text = "cores=3&segment=4&lanes=4&buffer=16&dims=band8&fanout=3&ordering=comparisons:2"
    parameters = Parameters.from_options("splitjoin", dict(option.split("=") for option in text.split("&")))
    assert parameters.options() == text
    plain = Parameters.from_options("splitjoin", {})
    assert (plain.fanout, str(plain.ordering)) == (4, "none")
    assert "fanout" not in Parameters().options() and "ordering" not in Parameters().options()
    message = "ordering must be none, tuples:k or comparisons:k with k from 1 to 65536, not 'strict'"
    assert refusal(Parameters.from_options, "splitjoin", {"ordering": "strict"}) == message


def test_windows_of_the_streams_may_differ():
    options = {"cores": "3", "segment": "4", "lanes": "1", "dims": "equal8", "s_segment": "6"}
    parameters = Parameters.from_options("lowlatency", options)
    assert (parameters.windows, parameters.capacity) == ((12, 18), 12)
    assert Parameters.from_options("lowlatency", {"segment": "4"}).s_segment == 4
    # All keys may be the same.
    keyed = Parameters.from_options("lowlatency", options | {"homes": "hash"})
    assert (keyed.windows, keyed.capacity) == ((4, 6), 4)


def test_the_order_that_is_promised():
    assert str(Parameters("scalejoin").order) == "comparisons:1"
    assert str(Parameters("splitjoin", ordering=Ordering("tuples", 3)).order) == "tuples:3"
    assert Parameters().order is None
    assert Parameters.from_options("scalejoin", {"inputs": "7"}).options().endswith("&fanout=4&inputs=7")


def test_lanes_default_to_the_whole_segment():
    assert Parameters.from_options("handshake", {"segment": "4"}).lanes == 4
    assert Parameters.from_options("handshake", {}).lanes == Parameters().segment


def test_dimensions_of_op_blocks_are_bands_unless_given():
    assert Parameters.from_options("opblock", {}).dims == OPBLOCK_DIMS


def test_windows_in_memory_are_large_unless_given():
    parameters = Parameters.from_options("bisort", {})
    assert (parameters.segment, parameters.lanes, parameters.buffer) == (1 << 16, 4, 1 << 10)
    assert Parameters.from_options("bisort", {"segment": "5"}).lanes == 4


def test_names_are_unique():
    one, other = Parameters(), Parameters(dims=(Dimension.parse("band32"),))
    assert one.name != other.name
    assert one.name == Parameters().name
