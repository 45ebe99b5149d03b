"""The clock of the logic, made from a board's oscillator by the chip's PLL."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from amaranth import Const, Instance, Module, Signal, Value

from .errors import ParameterError


@dataclass(frozen=True)
class Dividers:
    """Of the input, of what it is compared with, and of the oscillator inside."""

    divide: int
    multiply: int
    output: int


def ecp5(source: float, mhz: float) -> Dividers:
    """The dividers of an EHXPLLL whose feedback is its output: it makes `source * multiply / divide`."""
    return _best(source, mhz, _ecp5_choices(Fraction(str(source))))


def _ecp5_choices(source: Fraction) -> Iterator[tuple[Fraction, Dividers]]:
    # Lattice FPGA-DS-02012: 3.125 to 400 MHz compared and put out, the oscillator at 400 to 800 MHz.
    for divide in range(1, min(128, int(source / Fraction("3.125"))) + 1):
        for multiply in range(1, 81):
            made = source * multiply / divide
            output = max(1, min(128, round(600 / made)))
            if source / divide <= 400 and made <= 400 and 400 <= made * output <= 800:
                yield made, Dividers(divide, multiply, output)


def virtex6(source: float, mhz: float) -> Dividers:
    """The dividers of an MMCM: it makes `source * multiply / divide / output`."""
    return _best(source, mhz, _virtex6_choices(Fraction(str(source)), Fraction(str(mhz))))


def _virtex6_choices(source: Fraction, mhz: Fraction) -> Iterator[tuple[Fraction, Dividers]]:
    # Xilinx DS152, speed grade -1: 10 to 450 MHz compared, the oscillator at 600 to 1200 MHz, up to 700 out.
    for divide in range(1, min(80, int(source / 10)) + 1):
        for multiply in range(5, 65):
            oscillator = source * multiply / divide
            output = max(1, min(128, round(oscillator / mhz)))
            if source / divide <= 450 and 600 <= oscillator <= 1200 and oscillator / output <= 700:
                yield oscillator / output, Dividers(divide, multiply, output)


def _best(source: float, mhz: float, choices: Iterable[tuple[Fraction, Dividers]]) -> Dividers:
    """The first dividers that make `mhz` exactly: they divide the input least, which makes for low jitter."""
    wanted = Fraction(str(mhz))
    others = set()
    for made, dividers in choices:
        if made == wanted:
            return dividers
        others.add(made)
    nearest = sorted(sorted(others, key=lambda made: abs(made - wanted))[:4])
    shown = ", ".join(f"{float(made):.6g}" for made in nearest)
    raise ParameterError(f"MHz must be what the PLL makes from {source:g} MHz, such as {shown}; not {mhz:g}")


#: The families that have a PLL here, so that their clock can be chosen.
DIVIDERS = {"ecp5": ecp5, "virtex6": virtex6}


def add_pll(
    m: Module, family: str, dividers: Dividers, clk: Value, source: float, mhz: float
) -> tuple[Value, Value]:
    """Adds a family's PLL, fed by `clk` of `source` MHz; returns the clock that it makes, and its lock."""
    made, locked = Signal(name="made"), Signal()
    if family == "ecp5":
        m.submodules.pll = Instance(
            "EHXPLLL",
            # The loop filter is as `ecppll` has it.
            a_FREQUENCY_PIN_CLKI=f"{source:g}",
            a_FREQUENCY_PIN_CLKOP=f"{mhz:g}",
            a_ICP_CURRENT="12",
            a_LPF_RESISTOR="8",
            a_MFG_ENABLE_FILTEROPAMP="1",
            a_MFG_GMCREF_SEL="2",
            p_CLKI_DIV=dividers.divide,
            p_CLKFB_DIV=dividers.multiply,
            p_CLKOP_DIV=dividers.output,
            p_CLKOP_ENABLE="ENABLED",
            p_CLKOP_CPHASE=(dividers.output - 1) // 2,
            p_CLKOP_FPHASE=0,
            p_FEEDBK_PATH="CLKOP",
            i_CLKI=clk,
            i_CLKFB=made,
            i_RST=Const(0),
            i_STDBY=Const(0),
            i_PHASESEL0=Const(0),
            i_PHASESEL1=Const(0),
            i_PHASEDIR=Const(1),
            i_PHASESTEP=Const(1),
            i_PHASELOADREG=Const(1),
            i_PLLWAKESYNC=Const(0),
            i_ENCLKOP=Const(0),
            o_CLKOP=made,
            o_LOCK=locked,
        )
        return made, locked
    raw, feedback = Signal(), Signal()
    m.submodules.pll = Instance(
        "MMCM_ADV",
        p_CLKIN1_PERIOD=1000 / source,
        p_DIVCLK_DIVIDE=dividers.divide,
        p_CLKFBOUT_MULT_F=float(dividers.multiply),
        p_CLKOUT0_DIVIDE_F=float(dividers.output),
        i_CLKIN1=clk,
        i_CLKIN2=Const(0),
        i_CLKINSEL=Const(1),
        i_CLKFBIN=feedback,
        i_RST=Const(0),
        i_PWRDWN=Const(0),
        i_DADDR=Const(0, 7),
        i_DCLK=Const(0),
        i_DEN=Const(0),
        i_DI=Const(0, 16),
        i_DWE=Const(0),
        i_PSCLK=Const(0),
        i_PSEN=Const(0),
        i_PSINCDEC=Const(0),
        o_CLKFBOUT=feedback,
        o_CLKOUT0=raw,
        o_LOCKED=locked,
    )
    m.submodules.pll_buffer = Instance("BUFG", i_I=raw, o_O=made)
    return made, locked
