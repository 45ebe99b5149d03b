"""The measurements that are kept: each is made once, and a run that was stopped goes on where it was."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from hw import engines, scaling, timing
from hw.area import CONFIGURATIONS, PAPER, Area
from hw.engines import ENGINES
from hw.errors import ToolError
from hw.joiner import JOINERS
from hw.parameters import Parameters
from hw.route import CROWDED, ECP5_85F, Clock, Routed
from hw.tools import Tool

#: What takes a number of records per cycle, not of cores, is among the engines.
SCALED = [name for name in JOINERS if name not in ENGINES]
ROOM = Area(83_640, 41_820, 83_640, 208)


@dataclass
class Router:
    """Stands for the tools: a core takes `luts`, `flip_flops` and `ram`, and MHz come from cores and seed."""

    luts: int = 1000
    flip_flops: int = 1
    ram: int = 0
    stop_after: int = 1_000_000

    def __post_init__(self):
        self.synthesised: list[str] = []
        self.placed: list[tuple[str, int]] = []
        self.options: list[tuple[str, ...]] = []
        self.laid: list[Path] = []

    def emit(self, parameters: Parameters) -> str:
        return f"{parameters.architecture}-{parameters.lanes} {parameters.cores}"

    def synthesise(self, text: str, top: str, *, chip, folder: Path) -> Path:
        self.synthesised.append(text)
        path = folder / "netlist.json"
        path.write_text(text)
        return path

    def area(self, netlist: Path) -> tuple[int, Area]:
        cores = int(netlist.read_text().split()[1])
        return cores, Area(cores * self.luts + 300, cores * self.ram, cores * self.flip_flops, 0)

    def pack(self, netlist: Path, *, chip, folder: Path) -> tuple[Area, Area]:
        return self.area(netlist)[1], ROOM

    def place(self, netlist: Path, *, mhz: float, seed: int, chip, folder: Path, options: tuple) -> Routed:
        if len(self.placed) >= self.stop_after:  # several may come at once
            raise KeyboardInterrupt
        cores, area = self.area(netlist)
        self.placed.append((netlist.read_text(), seed))
        self.options.append(options)
        clock = Clock("clk", mhz, 150 - cores / 10 + seed)
        return Routed(ECP5_85F, area, ROOM, (clock,), (), folder / "output")


@pytest.fixture
def router(monkeypatch, tmp_path) -> Router:
    router = Router()
    monkeypatch.setenv("TOUCHLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(scaling, "PICTURE", tmp_path / "scaling.png")
    monkeypatch.setattr(timing, "RECORD", tmp_path / "measured.json")
    monkeypatch.setattr(timing, "emit_pinned", router.emit)
    monkeypatch.setattr(timing.tools, "nextpnr", lambda family: Tool("nextpnr-ecp5", (), "0", {}))
    for name in ("synthesise", "pack", "place"):
        monkeypatch.setattr(timing.route, name, getattr(router, name))
    monkeypatch.setattr(timing.floorplan, "anchor", router.laid.append)
    return router


def test_a_stopped_run_goes_on(router, capsys):
    router.stop_after = 5
    with pytest.raises(KeyboardInterrupt):
        scaling.main(["--cores", "4,8", "--seeds", "3"])
    router.stop_after = 100
    assert scaling.main(["--cores", "4,8", "--seeds", "3"]) == 0
    designs = [router.emit(replace(one, cores=cores)) for one in scaling.variants() for cores in (4, 8)]
    routes = sorted((design, seed) for design in designs for seed in (1, 2, 3))
    assert sorted(router.placed) == routes
    # Once in the run that was stopped, if it came so far, and once in the other, if a seed was left.
    assert {*router.synthesised} == {*designs}
    assert len(router.laid) == len(router.synthesised)
    assert max(map(router.synthesised.count, designs)) <= 2
    assert scaling.PICTURE.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out

    assert scaling.main(["--cores", "4,8", "--seeds", "3"]) == 0
    assert sorted(router.placed) == routes
    assert capsys.readouterr().out == printed
    assert "handshake: 151.2 MHz with 8 cores, 151.2 with 8 (+0.0%); " in printed
    assert "120 MHz in all sizes and -10% are met\n" in printed


def test_another_machine_goes_on(router, monkeypatch, tmp_path, capsys):
    assert scaling.main(["--cores", "4,8", "--seeds", "2"]) == 0
    routes, printed = sorted(router.placed), capsys.readouterr().out
    monkeypatch.setenv("TOUCHLINE_CACHE", str(tmp_path / "another"))
    assert scaling.main(["--cores", "4,8", "--seeds", "2"]) == 0
    assert sorted(router.placed) == routes and capsys.readouterr().out == printed
    before = timing.RECORD.read_text()

    # Other tools route anew, and what they find takes the place of what was there.
    monkeypatch.setattr(timing.tools, "nextpnr", lambda family: Tool("nextpnr-ecp5", (), "1", {}))
    assert scaling.main(["--cores", "8", "--seeds", "1", "--architecture", "handshake"]) == 0
    again = sorted(router.placed)
    for route in routes:
        again.remove(route)
    assert again == [("handshake-1 8", 1)]
    changed = set(timing.RECORD.read_text().splitlines()) ^ set(before.splitlines())
    # A route and its cells, as they were and as they are.
    assert len(changed) == 4 and all("handshake_8x8" in line for line in changed)
    assert not any("seed 2" in line for line in changed)


def test_a_stopped_run_shows_what_it_has(router, monkeypatch):
    drawn = []
    monkeypatch.setattr(timing.os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: drawn.append(figure))
    router.stop_after = 3
    with pytest.raises(KeyboardInterrupt):
        scaling.main(["--cores", "4,8", "--seeds", "2", "--architecture", "handshake"])
    one_seed, stopped = (figure.axes[0] for figure in drawn)
    assert one_seed.get_title() == "one seed"
    assert stopped.get_title() == "median and range of 2 seeds, or as many as a point says"
    assert [text.get_text() for text in stopped.texts] == ["8", "one seed"]


def test_all_are_routed_with_a_seed_before_the_next(router, monkeypatch):
    drawn = []
    monkeypatch.setattr(timing.os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(scaling, "draw", lambda rows, path: drawn.append([len(found) for _, found in rows]))
    assert scaling.main(["--cores", "4,8", "--seeds", "2"]) == 0
    count = 2 * len(scaling.variants())
    assert [seed for _, seed in router.placed] == [1] * count + [2] * count
    assert drawn == [[1] * count, [2] * count]


def test_the_median_of_the_seeds_is_shown(router, capsys):
    assert timing.main(["--cores", "16", "--seeds", "3"]) == 0
    first = capsys.readouterr().out.splitlines()[5].split()
    # 150 - 1.6 + the second of three seeds, 1 tuple a cycle, 128 comparisons each.
    assert first[-3:] == ["150.4", "150.4", "19.3"]
    assert first[:4] == ["handshake", "16", "1", "equal32"]
    assert first[4:7] == ["16300", "0", "16300"]
    assert first[9] == "1018.8" and first[12] == "19.5%"


def test_what_has_no_room_is_not_placed(router, capsys):
    router.luts = 6000  # 16 cores take more than the chip has
    assert timing.main(["--cores", "4,16", "--architecture", "splitjoin"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("splitjoin")]
    assert len(rows) == 8 and all((row[1] == "16") == (row[-2:] == ["no", "room"]) for row in rows)
    assert {text.split()[1] for text, _ in router.placed} == {"4"}
    assert scaling.main(["--cores", "8,16", "--seeds", "1", "--architecture", "splitjoin"]) == 0
    printed = capsys.readouterr().out
    assert "splitjoin: 150.2 MHz with 8 cores, 150.2 with 8 (+0.0%)" in printed
    assert "are met; there is no room for 16\n" in printed


def test_some_engines(router, monkeypatch, capsys):
    asked, cores = [], {"merger": 4, "bisort": 64}
    monkeypatch.setattr(engines, "whole", lambda make, name: asked.append(name))
    monkeypatch.setattr(engines, "mapped", lambda text, name: Area(90, 10, 50, 1))
    monkeypatch.setattr(engines, "emit_alone", lambda make: f"{asked[-1]} {cores[asked[-1]]}")
    router.luts = 2000  # 64 cores of it take more than the chip has
    engines.main(["--only", "merger", "bisort", "--lanes", "2"])
    merger, bisort = capsys.readouterr().out.splitlines()[-2:]
    # 150 - 0.4 + the seed; two records of 8 bytes.
    assert merger.split()[:7] == ["merger", "2", "90", "10", "50", "1", "50.0"]
    assert merger.split()[-3:] == ["150.6", "301.2", "2.4"]
    assert bisort.split()[0] == "bisort" and bisort.count("no room") == 3
    assert "merger, 2 records per cycle, seed 1" in timing.RECORD.read_text()


def test_another_placer_for_a_crowded_chip(router, monkeypatch, capsys):
    """The same Verilog, so that only the options tell the two routes apart; nothing has a place."""
    monkeypatch.setattr(engines, "whole", lambda make, name: name)
    monkeypatch.setattr(engines, "mapped", lambda text, name: Area(90, 10, 50, 1))
    monkeypatch.setattr(engines, "emit_alone", lambda make: "bisort 4")
    for _ in range(2):
        engines.main(["--only", "bisort", "--lanes", "2", "4"])
    assert router.options == [(), CROWDED] and not router.laid


@pytest.mark.parametrize(
    "luts, flip_flops, ram, most",
    [
        (1000, 1, 0, 73),
        (500, 1, 0, 146),
        (1000, 1200, 0, 61),
        (500, 900, 200, 73),  # what writes into RAM takes the places of 100 flip-flops
        (14_000, 1, 0, None),
    ],
)
def test_a_full_chip_is_found(router, luts, flip_flops, ram, most):
    router.luts, router.flip_flops, router.ram = luts, flip_flops, ram
    with timing.designs() as design:
        if most is None:  # five cores take 84 %, six too many
            words = r"^no number of cores takes 85% to 90% of the cells of LFE5U-85F"
            with pytest.raises(ToolError, match=words):
                scaling.full(design, PAPER)
            return
        assert scaling.full(design, PAPER) == most
        assert 0.85 <= scaling.share(design(replace(PAPER, cores=most))) <= 0.90
    sizes = scaling.sizes(most)
    assert sizes[:3] == [4, 8, 16] and sizes[-1] == most and sizes == sorted(set(sizes))


def test_a_slow_full_chip_misses_the_target(router):
    path = ("0.5 here", "7.4 there")
    room = [timing.Timed(ROOM, ROOM, mhz, path) for mhz in (150, 134)]
    handshake = scaling.variants()[0]
    rows = [(replace(handshake, cores=cores), [found]) for cores, found in zip((8, 63), room)]
    assert scaling.verdicts(rows) == [
        "handshake: 150.0 MHz with 8 cores, 134.0 with 63 (-10.7%); 120 MHz in all sizes and -10% are missed",
        "    with 63 cores 134.0 MHz: 0.5 here > 7.4 there",
    ]


def test_ram_takes_the_luts_that_write_into_it():
    assert timing.taken(Area(logic=100, ram=8, flip_flops=0, block_rams=0)) == 112


@pytest.mark.parametrize(
    "command, arguments, message",
    [
        (timing, ["--cores", "4,x"], "timing: cores must be a positive integer, not 'x'\n"),
        (timing, ["--cores", "5"], "timing: cores must be among 4, 16, 64, 200, not 5\n"),
        (timing, ["--seeds", "0"], "timing: seeds must be a positive integer, not '0'\n"),
        (
            timing,
            ["--architecture", "handshake", "--cores", "5"],
            "timing: cores must be among 4, 16, 64, 200, not 5\n",
        ),
        (
            scaling,
            ["--architecture", "bisort"],
            f"figures: architecture must be among {', '.join(SCALED)}, not 'bisort'\n",
        ),
        (scaling, ["--seeds", "1,2"], "figures: seeds must be a positive integer, not '1,2'\n"),
    ],
)
def test_bad_options_are_one_line(router, command, arguments, message, capsys):
    assert command.main(arguments) == 2
    assert capsys.readouterr().err == message


def test_every_architecture_is_measured():
    assert {one.architecture for one in CONFIGURATIONS} == set(SCALED)
    assert {one.architecture for one in scaling.variants()} == set(SCALED)
