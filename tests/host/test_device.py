"""Devices by URL: what is accepted, and the exact words in which the rest is refused."""

import pytest

from host.device import open_device
from hw.errors import ParameterError
from hw.parameters import ARCHITECTURES

from ..configurations import DEVICES


@pytest.mark.parametrize(
    "url, message",
    [
        ("", "device URL must start with sim:, serial:, tcp:, xdma:, not ''"),
        ("handshake", "device URL must start with sim:, serial:, tcp:, xdma:, not 'handshake'"),
        ("usb:handshake", "device URL must start with sim:, serial:, tcp:, xdma:, not 'usb:handshake'"),
        (
            "sim:",
            f"device URL 'sim:': architecture must be one of {', '.join(ARCHITECTURES)}, not ''",
        ),
        (
            "sim:handshake?memory=latency:9",
            "device URL 'sim:handshake?memory=latency:9': memory=latency:9 is for bisort, which alone has "
            "memory, not for handshake",
        ),
        (
            "sim:soccer?cores=8",
            "device URL 'sim:soccer?cores=8': architecture must be one of "
            f"{', '.join(ARCHITECTURES)}, not 'soccer'",
        ),
        (
            "sim:handshake?cores=many",
            "device URL 'sim:handshake?cores=many': cores must be an integer, not 'many'",
        ),
        (
            "sim:handshake?core=8",
            "device URL 'sim:handshake?core=8': unknown parameter 'core'; "
            "accepted: buffer, cores, dims, lanes, segment",
        ),
        (
            "sim:handshake?cores=4&cores=8",
            "device URL 'sim:handshake?cores=4&cores=8': every parameter may be given once",
        ),
        (
            "sim:handshake?cores",
            "device URL 'sim:handshake?cores': bad query field: 'cores'",
        ),
        (
            "sim:handshake?stalls=1,2",
            "device URL 'sim:handshake?stalls=1,2': "
            "stalls must be SEED,IN,OUT with chances from 0 to 255, not '1,2'",
        ),
        (
            "sim:handshake?stalls=1,2,256",
            "device URL 'sim:handshake?stalls=1,2,256': "
            "stalls must be SEED,IN,OUT with chances from 0 to 255, not '1,2,256'",
        ),
        (
            "sim:handshake?netlist=gal",
            "device URL 'sim:handshake?netlist=gal': netlist must be one of ecp5, xc6v, not 'gal'",
        ),
    ],
)
def test_refused(url, message):
    with pytest.raises(ParameterError) as error:
        open_device(url)
    assert str(error.value) == message


def test_opened():
    with open_device(DEVICES["parallel"]) as device:
        assert device.parameters.cores == 3
        assert device.url == DEVICES["parallel"]
