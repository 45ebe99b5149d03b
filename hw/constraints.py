"""The files that tell a family's tools about pins and clocks, written from a board's description."""

from collections.abc import Iterator

from .boards import Board
from .top import TOP

NOTE = "Written by `make bitstream` from constraints/{}/board.toml; edit that."


def write(board: Board, mhz: float) -> dict[str, str]:
    """The files for a board whose logic runs at `mhz`, by name. A chip without a board has none."""
    if not board.pins:
        return {}
    families = {"ecp5": _ecp5, "gowin": _gowin, "virtex6": _virtex6, "arria10": _arria10}
    return families[board.family](board, mhz)


def _ports(board: Board) -> Iterator[tuple[str, str, str, str]]:
    """The name, pin, standard and pull of each port."""
    ports = iter(board.ports().items())
    for pin in board.pins.values():
        for _ in pin.at:
            port, at = next(ports)
            yield port, at, pin.standard, pin.pull


def _lines(board: Board, comment: str, lines: list[str]) -> str:
    return "\n".join([f"{comment} {NOTE.format(board.name)}", *lines, ""])


def _ecp5(board: Board, mhz: float) -> dict[str, str]:
    lines = []
    for port, at, standard, pull in _ports(board):
        lines.append(f'LOCATE COMP "{port}" SITE "{at}";')
        lines.append(f'IOBUF PORT "{port}" IO_TYPE={standard}{f" PULLMODE={pull}" if pull else ""};')
    # The clock that the PLL makes is derived from this one.
    lines.append(f'FREQUENCY PORT "clk" {board.clock_mhz:g} MHZ;')
    return {f"{TOP}.lpf": _lines(board, "#", lines)}


def _gowin(board: Board, mhz: float) -> dict[str, str]:
    lines = []
    for port, at, standard, pull in _ports(board):
        lines.append(f'IO_LOC "{port}" {at};')
        lines.append(f'IO_PORT "{port}" IO_TYPE={standard}{f" PULL_MODE={pull}" if pull else ""};')
    return {f"{TOP}.cst": _lines(board, "//", lines)}


def _virtex6(board: Board, mhz: float) -> dict[str, str]:
    clock = next(port for port in board.ports() if port.startswith("clk"))
    lines = [
        f'NET "{port}" LOC = "{at}" | IOSTANDARD = {standard}{f" | {pull}" if pull else ""};'
        for port, at, standard, pull in _ports(board)
    ]
    lines += [
        f'NET "{clock}" TNM_NET = "{clock}";',
        # The clock that the MMCM makes is derived from this one.
        f'TIMESPEC "TS_clk" = PERIOD "{clock}" {board.clock_mhz:g} MHz HIGH 50%;',
        *(f'NET "{port}" TIG;' for port in board.ports() if not port.startswith("clk")),
    ]
    return {f"{TOP}.ucf": _lines(board, "#", lines), f"{TOP}.xise": _xise(board)}


def _xise(board: Board) -> str:
    """An ISE project that implements the netlist."""
    device, speed = board.chip.rsplit("-", 1)
    device, package = device.split("ff")
    properties = {
        "Device": device,
        "Device Family": "Virtex6",
        "Package": f"ff{package}",
        "Speed Grade": f"-{speed}",
        "Top-Level Source Type": "EDIF",
        "Implementation Top": f"Module|{TOP}",
        "Implementation Top File": f"{TOP}.edif",
        "PROP_DesignName": TOP,
    }
    files = (
        (f"{TOP}.edif", "FILE_EDIF", 1),
        (f"{TOP}.ucf", "FILE_UCF", 0),
    )
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8" standalone="no" ?>',
            f"<!-- {NOTE.format(board.name)} -->",
            '<project xmlns="http://www.xilinx.com/XMLSchema" xmlns:xil_pn="http://www.xilinx.com/XMLSchema">',
            '  <version xil_pn:ise_version="14.7" xil_pn:schema_version="2"/>',
            "  <files>",
            *(
                f'    <file xil_pn:name="{name}" xil_pn:type="{kind}">'
                f'<association xil_pn:name="Implementation" xil_pn:seqID="{order}"/></file>'
                for name, kind, order in files
            ),
            "  </files>",
            "  <properties>",
            *(
                f'    <property xil_pn:name="{name}" xil_pn:value="{value}" xil_pn:valueState="non-default"/>'
                for name, value in properties.items()
            ),
            "  </properties>",
            "  <bindings/>",
            "  <libraries/>",
            "</project>",
            "",
        ]
    )


def _arria10(board: Board, mhz: float) -> dict[str, str]:
    settings = {
        "FAMILY": '"Arria 10"',
        "DEVICE": board.chip,
        "TOP_LEVEL_ENTITY": TOP,
        "PROJECT_OUTPUT_DIRECTORY": "output_files",
        "VERILOG_FILE": f"{TOP}.v",
        "SDC_FILE": f"{TOP}.sdc",
        "MIN_CORE_JUNCTION_TEMP": "0",
        "MAX_CORE_JUNCTION_TEMP": "100",
        "SEED": "1",
    }
    lines = [f"set_global_assignment -name {name} {value}" for name, value in settings.items()]
    for port, at, standard, _ in _ports(board):
        lines.append(f"set_location_assignment PIN_{at} -to {port}")
        lines.append(f'set_instance_assignment -name IO_STANDARD "{standard}" -to {port}')
    clocks = [
        f"create_clock -name clk -period {1000 / mhz:g} [get_ports clk]",
        "derive_clock_uncertainty",
        *(
            f"set_false_path {'-from' if port in ('rx', 'reset') else '-to'} [get_ports {port}]"
            for port in board.ports()
            if port != "clk"
        ),
    ]
    return {
        f"{TOP}.qpf": _lines(board, "#", [f'PROJECT_REVISION = "{TOP}"']),
        f"{TOP}.qsf": _lines(board, "#", lines),
        f"{TOP}.sdc": _lines(board, "#", clocks),
    }
