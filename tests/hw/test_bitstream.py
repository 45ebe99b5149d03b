"""Tests of `make bitstream`: what a build is made of, with open tools and with those of a chip's maker.

A small design takes the gateware's place where only the way to the bitstream is tested.
"""

import dataclasses
import gc
import os
import re
from pathlib import Path

import pytest

from hw import bitstream, route, tools, vendor
from hw.bitstream import Plan, build, main
from hw.errors import TimingError, ToolError
from hw.frame import Register

TINY = {"cores": "1", "segment": "1", "dims": "equal8"}


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch) -> Path:
    """A cache of the test's own, and a place for what is built."""
    monkeypatch.setenv("TOUCHLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small(monkeypatch):
    """A counter with a board's pins instead of the gateware; it shows a bit of the build."""

    def verilog(self, build=bytes(32), *, sources=False):
        others = [
            port for port in self.board.ports() if port not in ("rx", "tx") and not port.startswith("clk")
        ]
        clocks = [port for port in self.board.ports() if port.startswith("clk")] or ["clk"]
        inputs = ["rx", *clocks, *(["reset"] if "reset" in others else [])]
        fixed = [port for port in others if port != "reset"]
        source = '(* src = "hw/counter.py:7" *) ' if sources else ""
        clock = (
            f"IBUFGDS b(.I({clocks[0]}), .IB({clocks[1]}), .O(c));"
            if clocks[1:]
            else f"assign c = {clocks[0]};"
        )
        return "\n".join(
            [
                f"module touchline({', '.join([*inputs, 'tx', *fixed])});",
                *(f"input {port};" for port in inputs),
                *(f"output {port};" for port in ["tx", *fixed]),
                *(f"assign {port} = 1'b1;" for port in fixed),
                f"wire c; {clock}",
                f"{source}reg [39:0] count = 0;",
                "always @(posedge c) count <= count + rx;",
                f"assign tx = count[39] ^ 1'b{build[0] & 1};",
                "endmodule",
            ]
        )

    monkeypatch.setattr(Plan, "verilog", verilog)


def plan(**options: str) -> Plan:
    return Plan.from_options(options)


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_whole_gateware_becomes_a_bitstream_that_says_what_it_is(folders):
    lines = []
    built = build(plan(**TINY), lines.append)
    assert built.complete and built.folder == Path("build/ulx3s-85f")
    bits = (built.folder / "touchline.bit").read_bytes()
    assert b"LFE5U-85F" in bits[:200] and len(bits) > 100_000
    digest = plan(**TINY).digest
    verilog = (built.folder / "touchline.v").read_text()
    for k in range(8):
        word = int.from_bytes(digest[4 * k : 4 * k + 4], "little")
        assert f"registers[{Register.BUILD.value + k}] = 32'd{word};" in verilog
    for line in (
        r"file +build/ulx3s-85f/touchline\.bit \([\d,]+ bytes\)",
        r"sha256 +[0-9a-f]{64}",
        rf"build +{digest.hex()}",
        r"logic +80 MHz from 25 MHz, through a PLL",
        r"clock +[\d.]+ MHz reached, 80 asked \(\S+\)",
        r"LUTs +[\d,]+ of 83,640 \([\d.]+%\)",
        r"load +openFPGALoader -b ulx3s build/ulx3s-85f/touchline\.bit",
    ):
        assert re.search(f"^{line}$", built.summary, re.MULTILINE), line
    assert any("Program finished normally" in line for line in lines)


def test_the_digest_depends_on_every_ingredient_and_on_nothing_else(small, monkeypatch):
    base = plan(**TINY)
    assert base.digest == plan(**TINY).digest
    monkeypatch.setattr(os, "environ", os.environ | {"HOME": "/elsewhere"})
    assert base.digest == plan(**TINY).digest
    board = base.board
    moved = dataclasses.replace(
        board, pins=board.pins | {"rx": dataclasses.replace(board.pins["rx"], at=("B2",))}
    )
    explained = dataclasses.replace(
        board, pins=board.pins | {"rx": dataclasses.replace(board.pins["rx"], source="?")}
    )
    assert dataclasses.replace(base, board=explained).digest == base.digest
    others = [
        plan(**TINY, mhz="100"),
        plan(**TINY, baud="115200"),
        plan(**TINY, seeds="2"),
        plan(**TINY, board="ecpix5-85f"),
        dataclasses.replace(base, board=moved),
        dataclasses.replace(base, board=dataclasses.replace(board, nextpnr=("--um-85k",))),
    ]
    newer = plan(**TINY)
    yosys = dataclasses.replace(tools.yosys(), version="99")
    with monkeypatch.context() as patch:
        patch.setattr(tools, "yosys", lambda: yosys)
        digests = [newer.digest]
    with monkeypatch.context() as patch:
        patch.setattr(route, "flow", lambda family: ("synth -top {top}",))
        digests.append(plan(**TINY).digest)
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "verilog", lambda self: "module other(); endmodule")
        digests.append(plan(**TINY).digest)
    digests += [other.digest for other in others]
    assert len({base.digest, *digests}) == len(digests) + 1


def test_a_build_is_made_once(small, folders, monkeypatch):
    first = build(plan(**TINY, seeds="2"))
    kept = sorted(path.name for path in (folders / "cache" / "bitstreams").iterdir())
    assert [name.rpartition(".")[2] == "lock" for name in kept] == [False, True]
    monkeypatch.setattr(tools, "run", None)  # nothing is run the second time
    (first.folder / "touchline.bit").unlink()
    assert build(plan(**TINY, seeds="2")) == first
    assert (first.folder / "touchline.bit").exists()


def test_of_several_placements_the_fastest_is_kept(small, monkeypatch):
    place, run, packed = bitstream.route.place, tools.run, []

    def placed(*arguments, seed, **options):
        routed = place(*arguments, seed=seed, **options)
        clock = dataclasses.replace(routed.slowest, reached={1: 60.0, 2: 90.0, 3: 70.0}[seed])
        return dataclasses.replace(routed, clocks=(clock,))

    def noted(tool, arguments, **options):
        packed.extend(arguments if "ecppack" in tool.name else [])
        return run(tool, arguments, **options)

    monkeypatch.setattr(bitstream.route, "place", placed)
    monkeypatch.setattr(tools, "run", noted)
    assert "clock       90.0 MHz reached" in build(plan(**TINY, seeds="3")).summary
    assert packed[packed.index("--input") + 1] == "routed.2"


def test_missed_timing_is_an_error_with_the_path_and_leaves_nothing(small, folders, capsys):
    fast = plan(**TINY)
    fast = dataclasses.replace(fast, board=dataclasses.replace(fast.board, clock_mhz=1000))
    with pytest.raises(TimingError) as error:
        build(fast)
    message = str(error.value)
    assert re.match(
        r"timing missed on ulx3s-85f: [\d.]+ MHz reached, not 1000; ask for less \(MHZ=\)", message
    )
    assert re.search(r"\d\.\d\d +count\S* +hw/counter\.py:7", message)
    assert not list((folders / "cache" / "bitstreams").glob("ulx3s-85f-*[!k]"))
    assert not (folders / "build").exists()


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")  # what is refused is not used
@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            "--board ml506",
            "board must be one of de5a-net, ecpix5-85f, ml605, tang-mega-138k, ulx3s-85f, "
            "xc6vlx760, not 'ml506'",
        ),
        ("--mhz fast", "mhz must be a positive number, not 'fast'"),
        ("--mhz nan", "mhz must be a positive number, not 'nan'"),
        (
            "--mhz 33.3",
            "MHz must be what the PLL makes from 25 MHz, such as 32.1429, 33.3333, 34.375, 35; not 33.3",
        ),
        ("--board de5a-net --mhz 100", "MHz must be 50 on de5a-net, where no PLL is used, not 100"),
        ("--baud 0", "baud must be a positive integer, not '0'"),
        ("--baud 3000001", "baud must be at most 3000000 on ulx3s-85f (FT231X), not 3000001"),
        ("--baud 1220", "baud must be from 1221 to 26666666 at 80 MHz, not 1220"),
        ("--seeds -1", "seeds must be a positive integer, not '-1'"),
        ("--seeds 65", "seeds must be at most 64, not 65"),
        ("--cores 0", "cores must be an integer from 1 to 1024, not 0"),
        ("--dims near32", None),
    ],
)
def test_bad_values_are_one_line(arguments, message, capsys):
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("bitstream: ") and "\n" not in error
    assert message is None or error == f"bitstream: {message}"
    gc.collect()  # what was refused goes while its warning is ignored


@pytest.mark.parametrize(
    "board, files, command, program",
    [
        (
            "ml605",
            {"touchline.edif", "touchline.ucf", "touchline.xise"},
            "ngdbuild -p xc6vlx240tff1156-1 ",
            "ngdbuild",
        ),
        (
            "de5a-net",
            {"touchline.qpf", "touchline.qsf", "touchline.sdc"},
            "quartus_sh --flow compile touchline",
            "quartus_sh",
        ),
    ],
)
def test_without_the_makers_tools_the_project_is_complete_and_no_bitstream_is_claimed(
    board, files, command, program, capsys
):
    assert main(["--board", board, *(f"--{name}={value}" for name, value in TINY.items())]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{program} is not on PATH: no bitstream was made"
    assert any(line.startswith("to run") and command in line for line in lines)
    assert any(re.match(r"LUTs +[\d,]+ of [\d,]+ \(", line) for line in lines)
    assert not any(line.startswith(("file", "load")) for line in lines)
    folder = Path("build", board)
    assert files | {"touchline.v", "summary.txt"} <= {path.name for path in folder.iterdir()}
    vendor.check(plan(**TINY, board=board).board, folder)


def test_a_chip_without_a_board_is_for_area(small, capsys):
    assert main(["--board", "xc6vlx760"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^LUTs +\d+ of 474,240 ", out, re.MULTILINE)
    assert out.endswith("xc6vlx760 is a chip without a board: no bitstream was made\n")


@pytest.mark.parametrize("board", ["ml605", "de5a-net"])
def test_an_incomplete_project_is_noticed(small, board):
    folder = build(plan(**TINY, board=board)).folder
    what = plan(**TINY, board=board).board
    for path, old, new, message in (
        (
            "touchline.v",
            "touchline(rx",
            "touchline(led, rx",
            f"{board}: port 'led' has no pin in the project",
        ),
        ("touchline.ucf touchline.sdc", "", None, f"{board}: the project names touchline."),
    ):
        (file,) = (folder / name for name in path.split() if (folder / name).exists())
        text = file.read_text()
        file.unlink() if new is None else file.write_text(text.replace(old, new))
        with pytest.raises(ToolError) as error:
            vendor.check(what, folder)
        assert str(error.value).startswith(message)
        file.write_text(text)
    for name in ("touchline.ucf", "touchline.sdc"):
        if (folder / name).exists():
            (folder / name).write_text(
                (folder / name).read_text().replace("TIMESPEC", "").replace("create_clock", "")
            )
    with pytest.raises(ToolError, match="the clock has no rate in the project"):
        vendor.check(what, folder)


@pytest.fixture
def ise(tmp_path, monkeypatch) -> Path:
    """Programs with the names of ISE's, which do what theirs would as far as we look."""
    folder = tmp_path / "ise"
    folder.mkdir()
    for name in ("ngdbuild", "map"):
        program(folder / name, "test -f touchline.edif && echo fine")
    program(folder / "par", "echo 'All constraints were met.'")
    program(folder / "bitgen", "echo bits >touchline.bit")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_the_makers_tools_are_run_when_they_are_there(small, ise, capsys):
    assert main(["--board", "ml605"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^file +build/ml605/touchline.bit \(5 bytes\)$", out, re.MULTILINE)
    assert Path("build/ml605/touchline.bit").read_text() == "bits\n"


def test_what_goes_wrong_in_the_makers_tools_is_told(small, ise, folders):
    program(ise / "map", "echo ERROR:Map: too large; exit 2")
    with pytest.raises(ToolError, match=r"map .* failed with exit code 2:\nERROR:Map: too large"):
        build(plan(board="ml605"))
    program(ise / "map", "exit 0")
    program(ise / "par", "echo '1 constraint not met.'")
    with pytest.raises(TimingError, match=r"timing missed on ml605:\n1 constraint not met\."):
        build(plan(board="ml605"))
    program(ise / "par", "echo 'All constraints were met.'")
    program(ise / "bitgen", "exit 0")
    with pytest.raises(ToolError, match=r"bitgen wrote no touchline\.bit"):
        build(plan(board="ml605"))


def test_quartus_tells_missed_timing_in_a_report(small, folders, monkeypatch):
    (folders / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{folders}/bin:{os.environ['PATH']}")
    report = "Type  : Slow 900mV 100C Model Setup 'clk'\nSlack : {}\nTNS   : 0.0\n"
    script = "mkdir output_files; cd output_files; echo >touchline.sof; cat >touchline.sta.summary <<E\n"
    program(folders / "bin" / "quartus_sh", f"{script}{report.format('-1.25')}E")
    with pytest.raises(TimingError, match=r"de5a-net:\nSlow 900mV 100C Model Setup 'clk': slack -1\.25 ns"):
        build(plan(board="de5a-net"))
    program(folders / "bin" / "quartus_sh", f"{script}{report.format('1.25')}E")
    built = build(plan(board="de5a-net"))
    assert (
        built.complete
        and "load        quartus_pgm -m jtag -o 'p;build/de5a-net/output_files/touchline.sof'"
        in built.summary
    )


def test_cells_that_ise_does_not_know_are_refused(small, folders, monkeypatch):
    known = vendor.VIRTEX6_PRIMITIVES - {"CARRY4"}
    monkeypatch.setattr(vendor, "VIRTEX6_PRIMITIVES", known)
    with pytest.raises(ToolError, match="ml605: ISE does not know the cells CARRY4"):
        build(plan(board="ml605"))
