"""The boards that bitstreams are built for, each described in `constraints/<board>/board.toml`."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from .area import Area
from .errors import ParameterError
from .page import DOCS, write
from .pll import DIVIDERS

CONSTRAINTS = Path(__file__).parent.parent / "constraints"
PAGE = DOCS / "boards.md"
FAMILIES = ("ecp5", "gowin", "virtex6", "arria10")
#: Families that open tools turn into bitstreams.
OPEN = ("ecp5", "gowin")
#: A ball of a package: JEDEC leaves out the letters that look like digits.
_BALL = re.compile(r"[A-HJ-NPRT-WY]{1,2}[1-9]\d?")


@dataclass(frozen=True)
class Pin:
    """A pin, or the two of a differential pair with the positive one first, and who says where it is."""

    at: tuple[str, ...]
    standard: str
    source: str
    pull: str = ""
    low: bool = False  #: of a reset: it is low when pressed
    drive: int | None = None  #: the constant that is put out


@dataclass(frozen=True)
class Board:
    """A board, or a chip without one, which has no pins."""

    name: str
    title: str
    family: str
    chip: str
    clock_mhz: float  #: of the oscillator
    bridge: str  #: what the UART is connected to
    baud: int
    baud_limit: int | None
    pins: dict[str, Pin]
    nextpnr: tuple[str, ...] = ()  #: options that name the chip
    load: str = ""  #: how to load `{file}`
    room: Area | None = None  #: what the chip has, where open tools do not tell

    @property
    def mhz(self) -> float | None:
        """The clock of the logic, where it cannot be chosen."""
        return None if self.family in DIVIDERS else self.clock_mhz

    def ports(self) -> dict[str, str]:
        """The pin of each port of the top."""
        ports = {}
        for name, pin in self.pins.items():
            names = (name,) if len(pin.at) == 1 else (f"{name}_p", f"{name}_n")
            ports |= dict(zip(names, pin.at))
        return ports


def names() -> list[str]:
    """The boards there are."""
    return sorted(path.parent.name for path in CONSTRAINTS.glob("*/board.toml"))


def load(name: str) -> Board:
    """The board of that name."""
    if name not in names():
        raise ParameterError(f"board must be one of {', '.join(names())}, not {name!r}")
    return parse(name, (CONSTRAINTS / name / "board.toml").read_text())


def parse(name: str, text: str) -> Board:
    """A board from the text of its file, which must be complete."""
    where = f"board {name}"
    try:
        data = tomllib.loads(text)
        room = data.get("room")
        board = Board(
            name=name,
            title=data["title"],
            family=data["family"],
            chip=data["chip"],
            clock_mhz=data["clock"]["mhz"],
            bridge=data["uart"]["bridge"],
            baud=data["uart"]["baud"],
            baud_limit=data["uart"].get("limit"),
            pins={key: _pin(pin) for key, pin in data.get("pins", {}).items()},
            nextpnr=tuple(data.get("nextpnr", ())),
            load=data.get("load", ""),
            room=Area(room["luts"], 0, room["flip_flops"], room["block_rams"]) if room else None,
        )
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise ParameterError(f"{where}: {error}") from None
    except KeyError as error:
        raise ParameterError(f"{where}: {error.args[0]!r} is missing") from None
    if board.family not in FAMILIES:
        raise ParameterError(f"{where}: family must be one of {', '.join(FAMILIES)}, not {board.family!r}")
    if board.family in OPEN and not (board.nextpnr and board.pins):
        raise ParameterError(f"{where}: a board of family {board.family} needs 'nextpnr' and 'pins'")
    if board.family not in OPEN and not board.room:
        raise ParameterError(f"{where}: a board of family {board.family} needs 'room'")
    if board.pins:
        _check_pins(board)
    return board


def table() -> str:
    """The boards, one line each."""
    rows = []
    for name in names():
        board = load(name)
        rows.append(
            (
                name,
                board.title,
                board.chip,
                {"virtex6": "yosys, ISE", "arria10": "yosys, Quartus"}.get(board.family, "open"),
                f"{board.clock_mhz:g} MHz, {'PLL' if board.mhz is None else 'no PLL'}",
                f"{board.baud} baud, {board.bridge}" if board.pins else "-",
            )
        )
    return tabulate(rows, ("board", "what", "chip", "tools", "clock", "UART"), tablefmt="github")


def _pin(data: dict) -> Pin:
    at = data["at"]
    return Pin(**data | {"at": (at,) if isinstance(at, str) else tuple(at)})


def _check_pins(board: Board) -> None:
    where = f"board {board.name}"
    for needed in ("clk", "rx", "tx"):
        if needed not in board.pins:
            raise ParameterError(f"{where}: pin {needed!r} is missing")
    if not board.load:
        raise ParameterError(f"{where}: 'load' is missing")
    taken: dict[str, str] = {}
    for port, at in board.ports().items():
        if not _BALL.fullmatch(at):
            raise ParameterError(f"{where}: pin {port!r} must be a ball such as G2, not {at!r}")
        if at in taken:
            raise ParameterError(f"{where}: {at} is both {taken[at]!r} and {port!r}")
        taken[at] = port
    for name, pin in board.pins.items():
        if not pin.source:
            raise ParameterError(f"{where}: pin {name!r} must say its source")
        if len(pin.at) > (2 if name == "clk" else 1):
            raise ParameterError(
                f"{where}: pin {name!r} must be one ball, or for a clock two, not {pin.at!r}"
            )
        if name not in ("clk", "rx", "tx", "reset") and pin.drive not in (0, 1):
            raise ParameterError(f"{where}: pin {name!r} must have a drive of 0 or 1, not {pin.drive!r}")


def page() -> str:
    """docs/boards.md with the table as the descriptions have it."""
    before, start, rest = PAGE.read_text().partition("<!-- boards -->\n")
    _, end, after = rest.partition("<!-- /boards -->\n")
    return f"{before}{start}{table()}\n{end}{after}"


if __name__ == "__main__":
    write(PAGE, page())
