"""The Verilated configurations of `make test`: few, because each is compiled. `make sim` has more."""

from hw.parameters import Parameters

#: Simulated devices, by what is special about them.
DEVICES = {
    "parallel": "sim:handshake?cores=3&segment=4",
    "serial": "sim:handshake?cores=2&segment=8&lanes=2&dims=equal32,band64,not_equal16,at_least16",
    "paper": "sim:handshake?cores=4&segment=8&lanes=1&dims=equal32",
    "opblock": "sim:opblock?cores=6&segment=4",
    "opblock_serial": "sim:opblock?cores=3&segment=4&lanes=2&dims=band16,band16,band16",
    "default": "sim:handshake?cores=8&segment=16",
}


def parameters(name: str) -> Parameters:
    """The parameters of a device in `DEVICES`."""
    architecture, _, options = DEVICES[name].removeprefix("sim:").partition("?")
    return Parameters.from_options(architecture, dict(option.split("=") for option in options.split("&")))
