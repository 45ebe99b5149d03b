"""The contract of the generated Verilog, read back with pyverilog: ports, widths, hierarchy."""

import re

import pytest
from pyverilog.vparser import ast
from pyverilog.vparser.parser import VerilogParser

from hw.dimension import Dimension
from hw.gather import FANIN
from hw.parameters import OPBLOCK_DIMS, Parameters
from hw.socket import COUNTERS_LAYOUT, RESULT_LAYOUT, tuple_layout
from hw.verilog import emit

CONFIGURATIONS = [
    Parameters(cores=1, segment=1, lanes=1, dims=(Dimension.parse("equal8"),)),
    Parameters(cores=5, segment=4, lanes=1, dims=(Dimension.parse("band64"), Dimension.parse("not_equal9"))),
    Parameters(cores=17, segment=2, lanes=2),
    Parameters("opblock", cores=3, segment=2, lanes=1, dims=OPBLOCK_DIMS[:2]),
    Parameters("splitjoin", cores=5, segment=2, lanes=1, dims=(Dimension.parse("equal8"),), fanout=3),
    Parameters("lowlatency", cores=3, segment=2, lanes=1, dims=(Dimension.parse("equal8"),), index=2),
    Parameters(
        "scalejoin", cores=5, segment=2, lanes=1, dims=(Dimension.parse("equal8"),), fanout=3, inputs=1
    ),
]
#: The module that each architecture places once per core.
CORES = {
    "handshake": "HandshakeCore_",
    "opblock": "OpBlock_",
    "splitjoin": "SplitCore_",
    "lowlatency": "LowLatencyNode_",
    "scalejoin": "SplitCore_",
}
#: Its gathering tree: the module of a node, how many streams a node takes, how many trees there are, and how
#: many such modules each core has in itself.
TREES = {
    "handshake": ("Merge_", FANIN, 1, 0),
    "opblock": ("Merge_", FANIN, 1, 0),
    "splitjoin": ("Merger_", 3, 2, 0),
    "lowlatency": ("Merge_", FANIN, 1, 1),
    "scalejoin": ("SlotMerger_", 2, 1, 0),
}


@pytest.fixture(scope="module", params=CONFIGURATIONS, ids=lambda p: p.name)
def parsed(request, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("ply"))
    # pyverilog does not know attributes in front of statements.
    text = re.sub(r"\(\* .*? \*\)", "", emit(request.param))
    tree = VerilogParser(outputdir=folder, debug=False).parse(text)
    return request.param, {module.name: module for module in tree.description.definitions}


def ports(module: ast.ModuleDef) -> dict[str, tuple[str, int]]:
    """Direction and width of each port."""
    found = {}
    for item in module.items:
        if isinstance(item, ast.Decl):
            for port in item.list:
                if isinstance(port, ast.Input | ast.Output):
                    width = int(port.width.msb.value) - int(port.width.lsb.value) + 1 if port.width else 1
                    found[port.name] = (type(port).__name__.lower(), width)
    return found


def instances(modules: dict[str, ast.ModuleDef], name: str) -> list[str]:
    """The modules placed below `name`, however deep."""
    placed = []
    for item in modules[name].items:
        if isinstance(item, ast.InstanceList):
            for instance in item.instances:
                placed += [instance.module, *instances(modules, instance.module)]
    return placed


def test_ports_are_the_socket(parsed):
    parameters, modules = parsed
    assert ports(modules[parameters.name]) == {
        "clk": ("input", 1),
        "rst": ("input", 1),
        "tuples__payload": ("input", tuple_layout(parameters.dims).size),
        "tuples__valid": ("input", 1),
        "tuples__ready": ("output", 1),
        "results__payload": ("output", RESULT_LAYOUT.size),
        "results__valid": ("output", 1),
        "results__ready": ("input", 1),
        "counters": ("output", COUNTERS_LAYOUT.size),
        "activity": ("output", parameters.cores),
    }


@pytest.mark.parametrize("parameters", CONFIGURATIONS, ids=lambda p: p.name)
def test_no_wire_is_named_like_a_bit_of_another(parameters):
    """Yosys takes a wire called `rows[7]` for bit 7 of `rows`, and drives both from two registers."""
    assert not re.findall(r"\\\S+\[\d+\] ", emit(parameters))


def test_every_core_is_an_instance_of_one_module(parsed):
    parameters, modules = parsed
    placed = instances(modules, parameters.name)
    prefix = CORES[parameters.architecture]
    cores = [name for name in placed if name.startswith(prefix) and "." not in name]
    assert len(cores) == parameters.cores
    assert len(set(cores)) == 1


def test_the_tree_has_a_node_per_group(parsed):
    parameters, modules = parsed
    module, fanin, trees, in_core = TREES[parameters.architecture]
    nodes, streams = 0, parameters.cores
    while streams > 1:
        streams = -(-streams // fanin)
        nodes += streams
    placed = instances(modules, parameters.name)
    assert sum(name.startswith(module) for name in placed) == trees * nodes + in_core * parameters.cores


def test_nothing_is_defined_but_what_is_used(parsed):
    parameters, modules = parsed
    assert set(modules) == {parameters.name, *instances(modules, parameters.name)}


def test_registers_of_a_tree_stay_apart_in_synthesis():
    text = emit(CONFIGURATIONS[2])
    nodes = re.findall(r"^(.*)\nmodule FanNode_", text, re.MULTILINE)
    assert nodes and all(line == "(* keep_hierarchy = 1 *)" for line in nodes)


def test_a_module_without_registers_has_no_clock():
    text = emit(next(one for one in CONFIGURATIONS if one.architecture == "splitjoin"))
    module = re.search(r"^module Choice_\w+\((.*)\);", text, re.MULTILINE)
    assert module and "clk" not in module[1]
    instance = re.search(r"^  Choice_\w+ \S+ \(\n(.*?)\);", text, re.MULTILINE | re.DOTALL)
    assert instance and ".clk" not in instance[1] and ".value(" in instance[1]
