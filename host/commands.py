"""The commands of `touchline` that deal with devices: serve, devices, selftest; and Spark's discovery."""

import argparse
import json
import sys
from collections.abc import Callable

from hw.errors import TouchlineError

from . import devices as found


def serve(argv: list[str], prog: str) -> int:
    """Runs a simulated board until it is told to stop."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Run a whole board in the simulator and serve it."
    )
    parser.add_argument(
        "--board",
        default="handshake",
        metavar="TEXT",
        help="such as 'handshake?cores=4&link=8,120,8&pins=uart&divisor=4' (default: %(default)s)",
    )
    parser.add_argument(
        "--listen", default="pty", help="pty, tcp:127.0.0.1:PORT or fifo:FOLDER (default: %(default)s)"
    )
    parser.add_argument("--token", default="", help="what clients must show; needed beyond this machine")
    options = parser.parse_args(argv)

    def announce(url: str) -> None:
        print(url, flush=True)

    return _answer(lambda: found.serve(options.board, options.listen, token=options.token, announce=announce))


def devices(argv: list[str], prog: str) -> int:
    """Lists the devices that answer."""
    parser = argparse.ArgumentParser(prog=prog, description="List the devices of this machine.")
    parser.add_argument("urls", nargs="*", metavar="URL", help="where to ask (default: wherever one may be)")
    urls = parser.parse_args(argv).urls

    def run() -> None:
        print(found.devices_table(found.devices(urls or None)))

    return _answer(run)


def discover() -> int:
    """`touchline-discover`: prints the devices that answer as Spark expects of a discovery script."""
    listed = found.devices()
    for one in listed:
        if one.error:
            print(f"touchline: {one.url}: {one.error}", file=sys.stderr)
    print(json.dumps({"name": "fpga", "addresses": [one.url for one in listed if not one.error]}))
    return 0


def selftest(argv: list[str], prog: str) -> int:
    """Runs known joins on a device; the exit status is 1 if it fails one."""
    parser = argparse.ArgumentParser(prog=prog, description="Run known joins on a device.")
    parser.add_argument("url", metavar="URL")
    url = parser.parse_args(argv).url

    def run() -> int:
        checks = found.selftest(url)
        print(found.selftest_table(checks))
        return 0 if all(check.passed for check in checks) else 1

    return _answer(run)


def _answer(run: Callable[[], int | None]) -> int:
    """Runs a command; an error is one line, and the exit status 2."""
    try:
        return run() or 0
    except TouchlineError as error:
        print(f"touchline: {error}", file=sys.stderr)
        return 2
