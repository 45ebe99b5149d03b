"""The errors Touchline raises. Each message names the thing, echoes the value, says what is accepted."""


class TouchlineError(Exception):
    """Anything Touchline refuses or cannot do."""


class ParameterError(TouchlineError, ValueError):
    """A gateware parameter or a device URL that is not accepted."""


class SpecError(TouchlineError, ValueError):
    """A join that cannot be understood: its condition, windows or columns."""


class DataError(TouchlineError, ValueError):
    """Rows that cannot be joined as asked: overflow, missing columns, wrong types."""


class ToolError(TouchlineError, RuntimeError):
    """A program Touchline needs is missing or failed."""


class TimingError(TouchlineError, RuntimeError):
    """A design that does not reach the clock asked of it."""


class DeviceError(TouchlineError, RuntimeError):
    """A device that hangs, dies or answers with something it should not."""
