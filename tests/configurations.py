"""The Verilated configurations of `make test`: few, because each is compiled. `make sim` has more."""

from hw.parameters import Parameters

#: Simulated devices, by what is special about them.
DEVICES = {
    "parallel": "sim:handshake?cores=3&segment=4",
    "serial": "sim:handshake?cores=2&segment=8&lanes=2&dims=equal32,band64,not_equal16,at_least16",
    "paper": "sim:handshake?cores=4&segment=8&lanes=1&dims=equal32",
    "opblock": "sim:opblock?cores=6&segment=4",
    "opblock_serial": "sim:opblock?cores=3&segment=4&lanes=2&dims=band16,band16,band16",
    "bisort": "sim:bisort?cores=2&segment=8&lanes=2&buffer=8",
    "bisort_serial": "sim:bisort?cores=3&segment=5&lanes=1&buffer=4&levels=2&dims=equal32,band64,not_equal16",
    "splitjoin": "sim:splitjoin?cores=3&segment=4&lanes=2&fanout=2",
    "splitjoin_ordered": "sim:splitjoin?cores=3&segment=4&lanes=4&dims=band16,band16&ordering=comparisons:1",
    "lowlatency": "sim:lowlatency?cores=3&segment=4&lanes=2&s_segment=6",
    "lowlatency_keyed": "sim:lowlatency?cores=3&segment=5&lanes=1&dims=equal32,band64,not_equal16&homes=hash"
    "&index=4&ordering=tuples:1",
    "scalejoin": "sim:scalejoin?cores=3&segment=4&lanes=2&fanout=2&inputs=3",
    "scalejoin_inputs": "sim:scalejoin?cores=2&segment=6&buffer=2&inputs=5",
    "default": "sim:handshake?cores=8&segment=16",
    # What synthesis makes of the gateware, with as many cells as are compiled in a moment.
    "parallel_ecp5": "sim:handshake?cores=2&segment=4&dims=band16,at_least8&netlist=ecp5",
    "parallel_xc6v": "sim:handshake?cores=2&segment=4&dims=band16,at_least8&netlist=xc6v",
    "serial_ecp5": "sim:handshake?cores=2&segment=4&lanes=1&dims=equal16,at_most8&netlist=ecp5",
    "serial_xc6v": "sim:handshake?cores=2&segment=4&lanes=1&dims=equal16,at_most8&netlist=xc6v",
    "opblock_ecp5": "sim:opblock?cores=3&segment=2&lanes=1&dims=band8,band8&netlist=ecp5",
    "bisort_ecp5": "sim:bisort?cores=1&segment=4&lanes=1&buffer=2&dims=equal8&netlist=ecp5",
    "bisort_xc6v": "sim:bisort?cores=1&segment=4&lanes=1&buffer=2&dims=equal8&netlist=xc6v",
    "opblock_xc6v": "sim:opblock?cores=3&segment=2&lanes=1&dims=band8,band8&netlist=xc6v",
    "splitjoin_ecp5": "sim:splitjoin?cores=2&segment=2&lanes=1&dims=band8&ordering=tuples:1&netlist=ecp5",
    "splitjoin_xc6v": "sim:splitjoin?cores=2&segment=2&lanes=1&dims=band8&ordering=tuples:1&netlist=xc6v",
    "scalejoin_ecp5": "sim:scalejoin?cores=2&segment=2&lanes=1&buffer=2&dims=band8&netlist=ecp5",
    "scalejoin_xc6v": "sim:scalejoin?cores=2&segment=2&lanes=1&buffer=2&dims=band8&netlist=xc6v",
    "lowlatency_ecp5": "sim:lowlatency?cores=2&segment=2&lanes=1&buffer=4&dims=band8&netlist=ecp5",
    "lowlatency_xc6v": "sim:lowlatency?cores=2&segment=2&lanes=1&buffer=4&dims=band8&netlist=xc6v",
}
NETLISTS = tuple(name for name, url in DEVICES.items() if "netlist=" in url)


def parameters(name: str) -> Parameters:
    """The parameters of a device in `DEVICES`."""
    architecture, _, text = DEVICES[name].removeprefix("sim:").partition("?")
    options = dict(option.split("=") for option in text.split("&"))
    options.pop("netlist", None)
    return Parameters.from_options(architecture, options)
