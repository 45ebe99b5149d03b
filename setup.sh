#!/usr/bin/env bash
# Sets up Touchline on Debian 12: missing system packages, .venv, and the wheels in requirements.lock.
# `setup.sh lock` writes requirements.lock from pyproject.toml instead.
set -euo pipefail
cd "$(dirname "$0")"

# The interpreter that the lock was made for.
find_python() {
    local candidate
    for candidate in python3.11 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

# cocotb runs Python inside the simulator and needs it as a shared library, which Debian packs apart.
has_shared_library() {
    "$1" - <<'PYTHON' 2>/dev/null
import ctypes, sysconfig

name = "libpython3.11.so.1.0"
try:
    ctypes.CDLL(f"{sysconfig.get_config_var('LIBDIR')}/{name}")
except OSError:
    ctypes.CDLL(name)
PYTHON
}

missing_packages() {
    local program python
    for program in g++ make perl; do
        command -v "$program" >/dev/null || echo "$program"
    done
    # Spark needs Java 17 or newer.
    java -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || echo openjdk-17-jre-headless
    python=$(find_python)
    if [ -z "$python" ]; then
        echo python3 python3-venv libpython3.11
        return
    fi
    "$python" -c 'import ensurepip' 2>/dev/null || echo python3-venv
    has_shared_library "$python" || echo libpython3.11
}

missing=$(missing_packages | xargs)
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "setup: missing system packages; install them with: sudo apt-get install $missing" >&2
        exit 1
    fi
    echo "setup: installing Debian packages: $missing"
    export DEBIAN_FRONTEND=noninteractive
    timeout 600 apt-get update -q
    # $missing is a list of words.
    timeout 1200 apt-get install -q -y --no-install-recommends $missing
fi
python=$(find_python)
if [ -z "$python" ]; then
    echo "setup: Python 3.11 not found: put python3.11 on PATH (Debian 12's python3 is one)" >&2
    exit 1
fi

if [ "${1:-}" = lock ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    "$python" -m venv "$scratch/venv"
    timeout 1800 "$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --dry-run --ignore-installed --report "$scratch/report.json" '.[dev]'
    "$python" - "$scratch/report.json" >"$scratch/lock" <<'PYTHON'
import json, sys

print("# Exact versions of pyproject.toml's dependencies and theirs, for Python 3.11; written by `make lock`.")
found = [item["metadata"] for item in json.load(open(sys.argv[1]))["install"]]
print(*sorted(f"{item['name'].lower()}=={item['version']}" for item in found if item["name"] != "touchline"), sep="\n")
PYTHON
    mv "$scratch/lock" requirements.lock
    exit
fi

"$python" -m venv .venv
timeout 3600 .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
timeout 600 .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
