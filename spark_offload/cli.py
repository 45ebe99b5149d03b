"""The `touchline` command: hands the rest of the line to the module of the command named first."""

import argparse
import os
import sys
from importlib import import_module

#: The module and function that each command is, and what it does.
COMMANDS = {
    "join": ("spark_offload.job", "main", "join two files with Spark"),
    "example": ("spark_offload.examples.command", "main", "make data, join it, draw a picture"),
    "serve": ("host.commands", "serve", "run a simulated board"),
    "devices": ("host.commands", "devices", "list the devices that answer"),
    "selftest": ("host.commands", "selftest", "run known joins on a device"),
}


def main(argv: list[str] | None = None) -> int:
    """Runs `argv` (the process's own arguments unless given) and returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="touchline",
        description="Sliding-window stream joins on FPGAs, driven from Spark.",
        epilog="`touchline COMMAND --help` says more.",
    )
    parser.add_argument(
        "command", choices=COMMANDS, help="; ".join(f"{k}: {v[2]}" for k, v in COMMANDS.items())
    )
    command = parser.parse_args(argv[:1]).command
    # Spark would start its workers with the `python3` on PATH, which need not have Touchline.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    module, function, _ = COMMANDS[command]
    return getattr(import_module(module), function)(argv[1:], prog=f"touchline {command}")


if __name__ == "__main__":
    sys.exit(main())
