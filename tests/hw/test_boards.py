"""Tests of the boards' descriptions, their constraint files, and the PLLs that make their clocks."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw import boards, constraints, pll
from hw.errors import ParameterError
from hw.top import TOP

BOARDS = ("de5a-net", "ecpix5-85f", "ml605", "tang-mega-138k", "ulx3s-85f", "xc6vlx760")

SMALL = """
title = "A board"
family = "ecp5"
chip = "LFE5U-85F-6BG381C"
nextpnr = ["--85k"]
load = "openFPGALoader {file}"
[clock]
mhz = 25
[uart]
bridge = "FT231X"
baud = 115200
[pins]
clk = { at = "G2", standard = "LVCMOS33", source = "manual" }
rx = { at = "M1", standard = "LVCMOS33", source = "manual" }
tx = { at = "L4", standard = "LVCMOS33", source = "manual" }
"""


def refusal(text: str) -> str:
    with pytest.raises(ParameterError) as error:
        boards.parse("small", text)
    return str(error.value)


def test_the_boards_there_are():
    assert tuple(boards.names()) == BOARDS
    with pytest.raises(ParameterError) as error:
        boards.load("ml506")
    assert str(error.value) == f"board must be one of {', '.join(BOARDS)}, not 'ml506'"


@pytest.mark.parametrize("name", BOARDS)
def test_every_board_is_complete_and_every_pin_has_a_source(name):
    board = boards.load(name)
    assert board.pins or name == "xc6vlx760"
    assert all(len(pin.source) > 10 for pin in board.pins.values())
    assert board.baud <= (board.baud_limit or board.baud)
    assert "{file}" in board.load or not board.pins
    text = (boards.CONSTRAINTS / name / "board.toml").read_text()
    assert text.startswith("# ")  # where it comes from


def test_the_page_is_up_to_date():
    assert boards.PAGE.read_text() == boards.page(), "run `make docs`"


def test_refusals():
    assert boards.parse("small", SMALL).ports() == {"clk": "G2", "rx": "M1", "tx": "L4"}
    for old, new, message in (
        ('title = "A board"', "", "board small: 'title' is missing"),
        (
            'family = "ecp5"',
            'family = "ecp4"',
            "family must be one of ecp5, gowin, virtex6, arria10, not 'ecp4'",
        ),
        ('nextpnr = ["--85k"]', "", "a board of family ecp5 needs 'nextpnr' and 'pins'"),
        ('"ecp5"', '"virtex6"', "a board of family virtex6 needs 'room'"),
        ('"M1"', '"G2"', "G2 is both 'clk' and 'rx'"),
        ('"M1"', '"IO7"', "pin 'rx' must be a ball such as G2, not 'IO7'"),
        ('"M1"', '["M1", "M2"]', "pin 'rx' must be one ball, or for a clock two, not ('M1', 'M2')"),
        ("tx = {", "led = {", "pin 'tx' is missing"),
        (
            "[pins]",
            '[pins]\nled = { at = "B2", standard = "LVCMOS33", source = "x" }',
            "a drive of 0 or 1, not None",
        ),
        ('source = "manual" }\nrx', 'source = "" }\nrx', "pin 'clk' must say its source"),
        ("[clock]", "[clock", "board small: "),
    ):
        assert message in refusal(SMALL.replace(old, new))


@pytest.mark.parametrize("name", [name for name in BOARDS if name != "xc6vlx760"])
def test_constraint_files_name_every_pin_once(name):
    board = boards.load(name)
    files = constraints.write(board, board.mhz or 100)
    text = "\n".join(files.values())
    for port, at in board.ports().items():
        assert len(re.findall(rf'SITE "{at}"|"{port}" {at};|LOC = "{at}"|PIN_{at} -to {port}\b', text)) == 1
        assert text.count(f'"{port}"') or f"-to {port}\n" in text
    assert all(f"constraints/{name}/board.toml; edit that" in file for file in files.values())
    assert all(name.startswith(f"{TOP}.") for name in files)


def test_constraint_files_by_family():
    def written(name: str, suffix: str) -> str:
        return constraints.write(boards.load(name), 50)[f"{TOP}.{suffix}"]

    assert 'LOCATE COMP "rx" SITE "M1";\nIOBUF PORT "rx" IO_TYPE=LVCMOS33 PULLMODE=UP;' in written(
        "ulx3s-85f", "lpf"
    )
    assert 'FREQUENCY PORT "clk" 25 MHZ;' in written("ulx3s-85f", "lpf")
    assert 'IO_LOC "tx" U15;\nIO_PORT "tx" IO_TYPE=LVCMOS33 PULL_MODE=UP;' in written("tang-mega-138k", "cst")
    assert 'NET "clk_p" LOC = "J9" | IOSTANDARD = LVDS_25;' in written("ml605", "ucf")
    assert 'TIMESPEC "TS_clk" = PERIOD "clk_p" 200 MHz HIGH 50%;' in written("ml605", "ucf")
    assert 'xil_pn:name="Device" xil_pn:value="xc6vlx240t"' in written("ml605", "xise")
    assert "set_global_assignment -name DEVICE 10AX115N2F45E1SG\n" in written("de5a-net", "qsf")
    assert "create_clock -name clk -period 20 [get_ports clk]" in written("de5a-net", "sdc")
    assert constraints.write(boards.load("xc6vlx760"), 100) == {}


@given(st.sampled_from([10, 12, 25, 48, 50, 100, 125]), st.integers(1, 32), st.integers(1, 8))
def test_ecp5_pll_makes_exactly_what_is_asked_or_says_what_it_can(source, multiply, divide):
    mhz = float(Fraction(source * multiply, divide))
    try:
        found = pll.ecp5(source, mhz)
    except ParameterError as error:
        assert str(error).startswith(f"MHz must be what the PLL makes from {source} MHz, such as ")
        # Only what is out of range, or has too many digits behind the point, is refused.
        exact = Fraction(str(mhz)) == Fraction(source * multiply, divide)
        assert not exact or not 3.125 <= mhz <= 400 or source / divide < 3.125
        return
    made = Fraction(source) * found.multiply / found.divide
    assert made == Fraction(str(mhz))
    assert 3.125 <= source / found.divide <= 400 and 400 <= made * found.output <= 800
    assert 1 <= found.divide <= 128 and 1 <= found.multiply <= 80 and 1 <= found.output <= 128


@given(st.integers(5, 400))
def test_virtex6_pll_makes_exactly_what_is_asked_or_says_what_it_can(mhz):
    try:
        found = pll.virtex6(200, mhz)
    except ParameterError as error:
        assert str(error).endswith(f"; not {mhz}")
        return
    oscillator = Fraction(200) * found.multiply / found.divide
    assert oscillator / found.output == mhz
    assert 600 <= oscillator <= 1200 and 200 / found.divide >= 10
    assert 5 <= found.multiply <= 64 and 1 <= found.output <= 128


def test_pll_as_ecppll_has_it():
    assert pll.ecp5(25, 100) == pll.Dividers(divide=1, multiply=4, output=6)
    assert pll.ecp5(25, 120) == pll.Dividers(divide=5, multiply=24, output=5)
    assert pll.virtex6(200, 100) == pll.Dividers(divide=1, multiply=5, output=10)
    with pytest.raises(ParameterError) as error:
        pll.ecp5(25, 33.3)
    assert str(error.value) == (
        "MHz must be what the PLL makes from 25 MHz, such as 32.1429, 33.3333, 34.375, 35; not 33.3"
    )
