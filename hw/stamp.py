"""Modules that are converted once and placed many times.

Amaranth writes a copy of a module for each of its instances, and Verilator is slow on a design of
many copies. A `Stamp` stands for its component: while `collecting`, it becomes an instance of a
module that is converted once; otherwise it is the component itself.
"""

import re
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from amaranth import ClockSignal, Instance, Module, ResetInserter, ResetSignal, Value
from amaranth.back import verilog
from amaranth.lib import wiring

_collected: ContextVar["_Collected | None"] = ContextVar("collected", default=None)
_PROJECT = f"{Path(__file__).parent.parent}/"


@dataclass(frozen=True)
class _Module:
    signature: wiring.Signature
    text: str

    @property
    def clocked(self) -> bool:
        """Whether it has a clock and a reset: one without registers has neither."""
        return re.search(r"^\s*input clk;", self.text, re.MULTILINE) is not None


@dataclass(frozen=True)
class _Collected:
    sources: bool
    modules: dict[str, _Module] = field(default_factory=dict)


@contextmanager
def collecting(*, sources: bool = False):
    """Collects the stamped modules made meanwhile; yields them as a dict from name to module.

    With `sources` each wire of their Verilog says where it comes from, such as `hw/shell.py:140`.
    """
    collected = _Collected(sources)
    token = _collected.set(collected)
    try:
        yield collected.modules
    finally:
        _collected.reset(token)


def convert(component: wiring.Component, name: str, *, sources: bool = False) -> str:
    """The Verilog of one module, without those that are stamped in it; `sources` as in `collecting`."""
    text = verilog.convert(component, name=name, emit_src=sources, strip_internal_attrs=not sources)
    # Yosys takes a wire called `rows[7]` for bit 7 of `rows`, and drives both from two registers.
    text = re.sub(r"\\\S+\[\d+\]\S*", lambda name: re.sub(r"\[(\d+)\]", r".\1", name[0]), text)
    # Every module would claim to be the top, and sources are wanted as in the project.
    return text.replace("(* top =  1  *)\n", "").replace(_PROJECT, "") if sources else text


class Stamp(wiring.Component):
    """The component `kind(*arguments)`, placed as an instance of one shared module.

    `reset` resets it too: a ResetInserter around it would not reach into an instance, nor into those inside.
    A component whose class says `KEPT` stays a module of its own in synthesis.
    """

    def __init__(self, kind: Callable[..., wiring.Component], *arguments, reset: Value | int = 0):
        self._reset = Value.cast(reset)
        collected = _collected.get()
        if collected is None:
            self._component = kind(*arguments)
            super().__init__(self._component.signature)
            return
        # Equal arguments make equal modules, so the name says which they are.
        key = f"{kind.__name__}{arguments!r}"
        self._name = f"{kind.__name__}_{sha256(key.encode()).hexdigest()[:8]}"
        if self._name not in collected.modules:
            component = kind(*arguments)
            text = convert(component, self._name, sources=collected.sources)
            if getattr(kind, "KEPT", False):
                head = f"module {self._name}("
                text = text.replace(head, f"(* keep_hierarchy = 1 *)\n{head}", 1)
            collected.modules[self._name] = _Module(component.signature, text)
        self._component = None
        self._clocked = collected.modules[self._name].clocked
        super().__init__(collected.modules[self._name].signature)

    def elaborate(self, platform):
        if self._component is None:
            return Instance(self._name, *_connections(self, self._reset if self._clocked else None))
        m = Module()
        component = self._component
        m.submodules.component = ResetInserter(self._reset)(component)
        inside = {path: value for path, _, value in self.signature.flatten(component)}
        for path, member, value in self.signature.flatten(self):
            sink, driver = (inside[path], value) if member.flow is wiring.In else (value, inside[path])
            m.d.comb += sink.eq(driver)
        return m


def _connections(component: wiring.Component, reset: Value | None):
    if reset is not None:
        yield "i", "clk", ClockSignal()
        yield "i", "rst", ResetSignal() | reset
    for path, member, value in component.signature.flatten(component):
        direction = "i" if member.flow is wiring.In else "o"
        yield direction, "__".join(str(part) for part in path), value
