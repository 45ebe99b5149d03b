"""The bench of the memory port on AXI4, with the narrowest words of records and with the widest of AXI."""

import pytest
from amaranth.lib import wiring

from hw.axi_memory import AxiMemoryUser, check_words
from hw.errors import ParameterError
from hw.memory_port import MemoryPort
from hw.verilog import whole
from sim.benches.axi_memory import ADDRESS_WIDTH
from sim.copier import Copier
from sim.regression import run_benches


@pytest.mark.parametrize("width", [64, 1024])
def test_bench_passes(width, request):
    def make() -> wiring.Component:
        return AxiMemoryUser(Copier(MemoryPort(width, ADDRESS_WIDTH), longest=512))

    name = f"axi_copier_{width}"
    seed = request.config.option.seed
    passed, failed, cycles, _ = run_benches(name, whole(make, name), ("sim.benches.axi_memory",), {}, seed)
    assert failed == ()
    assert passed == 5
    assert cycles > 10_000


def test_words_that_axi_does_not_have_are_refused():
    with pytest.raises(ParameterError, match=r"AXI memory words must have 8, 16, \.\.\. 1024 bits, not 2048"):
        check_words(MemoryPort(2048, 8))
