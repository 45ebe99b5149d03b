"""Modules that are converted once and placed many times.

Amaranth writes a copy of a module for each of its instances, and Verilator is slow on a design of
many copies. A `Stamp` stands for its component: while `collecting`, it becomes an instance of a
module that is converted once; otherwise it is the component itself.
"""

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256

from amaranth import ClockSignal, Instance, Module, ResetInserter, ResetSignal, Value
from amaranth.back import verilog
from amaranth.lib import wiring

_collected: ContextVar["dict[str, _Module] | None"] = ContextVar("collected", default=None)


@dataclass(frozen=True)
class _Module:
    signature: wiring.Signature
    text: str


@contextmanager
def collecting():
    """Collects the stamped modules made meanwhile; yields them as a dict from name to module."""
    collected: dict[str, _Module] = {}
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)


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
        if self._name not in collected:
            component = kind(*arguments)
            text = verilog.convert(component, name=self._name, emit_src=False, strip_internal_attrs=True)
            if getattr(kind, "KEPT", False):
                head = f"module {self._name}("
                text = text.replace(head, f"(* keep_hierarchy = 1 *)\n{head}", 1)
            collected[self._name] = _Module(component.signature, text)
        self._component = None
        super().__init__(collected[self._name].signature)

    def elaborate(self, platform):
        if self._component is None:
            return Instance(self._name, *_connections(self, self._reset))
        m = Module()
        component = self._component
        m.submodules.component = ResetInserter(self._reset)(component)
        inside = {path: value for path, _, value in self.signature.flatten(component)}
        for path, member, value in self.signature.flatten(self):
            sink, driver = (inside[path], value) if member.flow is wiring.In else (value, inside[path])
            m.d.comb += sink.eq(driver)
        return m


def _connections(component: wiring.Component, reset: Value):
    yield "i", "clk", ClockSignal()
    yield "i", "rst", ResetSignal() | reset
    for path, member, value in component.signature.flatten(component):
        direction = "i" if member.flow is wiring.In else "o"
        yield direction, "__".join(str(part) for part in path), value
