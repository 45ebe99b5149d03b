"""Netlists: what synthesis makes of Verilog, written so that a simulator runs it.

::

    Verilog ---> [ yosys ] ---> cells of a chip family ---> flat Verilog + the cells' models

The cells are those that are counted and placed, but for block RAMs; the hierarchy around them is dissolved.
"""

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import tools
from .errors import ToolError

#: Yosys' commands that map the module {top} to a family's cells.
SYNTHESIS = {
    # Its mapper fails an assertion when nets have several names, in some sizes of a joiner.
    "ecp5": (
        "synth_ecp5 -top {top} -run begin:map_luts\nopt_clean -purge\nsynth_ecp5 -top {top} -run map_luts:\n"
    ),
    # Ports would become pads, but a joiner sits inside a larger design.
    "xc6v": "synth_xilinx -family xc6v -ise -noiopad -noclkbuf -top {top}\n",
}
_MODELS = {"ecp5": "+/ecp5/cells_sim.v", "xc6v": "+/xilinx/cells_sim.v"}
# Models set what they hold with `<=` in initial blocks, and bits of one carry vector feed each other.
_WAIVED = "/* verilator lint_off INITIALDLY */\n/* verilator lint_off UNOPTFLAT */\n"


@dataclass(frozen=True)
class Netlist:
    """One flat module of cells: as Verilog with the models of its cells, and as yosys' JSON."""

    verilog: str
    module: dict


def synthesise(verilog: str, top: str, family: str) -> Netlist:
    """The netlist of the module `top`, whose ports it keeps, in cells of a chip family."""
    # Yosys has no models of block RAMs: what they hold is in LUTs here.
    commands = re.sub(r"^synth_\w+", r"\g<0> -nobram", SYNTHESIS[family].format(top=top), flags=re.MULTILINE)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # ... also where block RAM was asked for.
        (folder / "top.v").write_text(verilog.replace('ram_style = "block"', 'ram_style = "auto"'))
        tools.run_yosys(
            "read_verilog top.v\n"
            f"{commands}"
            "setattr -mod -unset keep_hierarchy *\n"
            "flatten\n"
            "delete t:$scopeinfo\n"
            "write_verilog -noattr -norename netlist.v\n"
            "write_json netlist.json\n"
            "design -reset\n"
            # As read, with its includes: yosys knows where it is.
            f"tee -o models.txt read_verilog -ppdump -lib {_MODELS[family]}\n",
            cwd=folder,
        )
        module = json.loads((folder / "netlist.json").read_text())["modules"][top]
        kinds = {cell["type"] for cell in module["cells"].values()}
        models = _models((folder / "models.txt").read_text(), kinds)
        text = "\n".join([_WAIVED, (folder / "netlist.v").read_text(), *models])
    return Netlist(text, module)


def _models(library: str, kinds: set[str]) -> list[str]:
    """The modules, of a library of cells, that instances of `kinds` need."""
    timeless = re.sub(r"\bspecify\b.*?\bendspecify\b", "", library, flags=re.DOTALL)
    modules = {
        match["name"].lstrip("\\"): match[0]
        for match in re.finditer(
            r"^module\s+(?P<name>[^\s(;#]+).*?\bendmodule\b", timeless, re.DOTALL | re.MULTILINE
        )
    }
    needed: dict[str, str] = {}
    wanted = sorted(kinds)
    while wanted:
        kind = wanted.pop()
        # A cell that is only declared would simulate as one whose outputs never change.
        if not re.search(r"\b(assign|always)\b", modules.get(kind, "")):
            raise ToolError(f"yosys {tools.yosys().version} has no simulation model of the cell {kind}")
        needed[kind] = modules[kind]
        inside = re.findall(r"^\s*(\w+)\s*(?:#\(|\w+\s*\()", modules[kind], re.MULTILINE)
        wanted += sorted(set(inside) & modules.keys() - needed.keys())
    return list(needed.values())
