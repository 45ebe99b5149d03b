"""The wire: frames, registers and opcodes, defined once for gateware and host.

Both directions carry frames of whole words; a word has 8 to 512 bits, as wide as the link. All fields
are little-endian::

    header (8 bytes)  payload (`length` words)  CRC-32 (4 bytes)

Header and CRC are padded with zeros to whole words; the CRC covers every word before it. What does not
start with the magic, announces more payload than is allowed, or fails its CRC, is skipped: the
receiver looks for the next magic, word by word.

DATA frames are numbered modulo 256 and taken in order only. Every header acknowledges, cumulatively, what
came the other way, and grants credit: how many more frames its sender will take. The device keeps no
time. It answers what it is asked, sends results as long as it has credit, and starts again from the
acknowledged frame when told to; the host notices what is missing, by number or by time, and asks.
"""

from dataclasses import dataclass

from amaranth.lib import crc, data, enum

from .errors import ParameterError
from .parameters import Parameters
from .socket import RESULT_LAYOUT, tuple_layout

MAGIC = 0x4C54
NUMBERS = 256
WIDTHS = (8, 16, 32, 64, 128, 256, 512)


class FrameKind(enum.Enum, shape=8):
    """What a frame is for. Only DATA is numbered; all others may be sent again at any time."""

    RESET = 1  #: to the device: forget everything; `sequence` is a number to answer with
    READY = 2  #: from the device: reset is done; repeats the number
    DATA = 3  #: tuples to the device, results from it
    POLL = 4  #: to the device: answer with STATUS
    STATUS = 5  #: from the device: `sequence` is the number of the DATA frame it will send next
    RESEND = 6  #: to the device: send again from `acknowledge` on
    READ = 7  #: to the device: answer with the register `sequence`
    VALUE = 8  #: from the device: the payload is the value of the register `sequence`


HEADER_LAYOUT = data.StructLayout(
    {
        "magic": 16,  # 0x4C54, the bytes TL
        "kind": FrameKind,  # see Frames
        "sequence": 8,  # of a DATA frame its number; else see Frames
        "acknowledge": 8,  # the number of the next frame expected from the other side
        "credit": 8,  # how many frames from that number on will be taken
        "length": 16,  # payload words
    }
)
CRC = crc.catalog.CRC32_ISO_HDLC
CRC_BYTES = 4


class Register(enum.Enum, shape=8):
    """Registers of 32 bits, read-only."""

    IDENTITY = 0  #: the bytes TCHL
    VERSION = 1  #: of this definition
    LENGTH = 2  #: bytes of text from TEXT on
    DAMAGED = 3  #: frames skipped since power-up, modulo 2**32
    TUPLES = 8  #: the joiner's counters, see `hw/socket.py`
    PAIRS = 9  #: another
    STEPS = 10  #: another
    STALLS = 11  #: another
    LIVE_EVICTIONS = 12  #: the last of them
    DIGEST = 16  #: SHA-256 of the text, 8 registers
    TEXT = 32  #: architecture and parameters as in a URL, 4 bytes per register


IDENTITY_WORD = int.from_bytes(b"TCHL", "little")
VERSION = 2
TEXT_LIMIT = 4 * (NUMBERS - Register.TEXT.value)


@dataclass(frozen=True)
class Link:
    """The sizes of a link: word width in bits, payload words per frame, and frames kept per direction."""

    width: int = 8
    payload: int = 120
    frames: int = 8

    def __post_init__(self):
        if self.width not in WIDTHS:
            accepted = ", ".join(map(str, WIDTHS))
            raise ParameterError(f"link width must be one of {accepted}, not {self.width!r}")
        if type(self.payload) is not int or not 1 <= self.payload <= 4096:
            raise ParameterError(f"link payload must be an integer from 1 to 4096, not {self.payload!r}")
        if self.frames not in (2, 4, 8, 16, 32, 64):
            raise ParameterError(f"link frames must be a power of two from 2 to 64, not {self.frames!r}")

    @classmethod
    def parse(cls, text: str) -> "Link":
        """A link from text such as "8,120,8", as `str` makes it."""
        try:
            width, payload, frames = map(int, text.split(","))
        except ValueError:
            raise ParameterError(
                f"link must be width, payload and frames such as 8,120,8, not {text!r}"
            ) from None
        return cls(width, payload, frames)

    def __str__(self) -> str:
        return f"{self.width},{self.payload},{self.frames}"

    def words(self, size: int) -> int:
        """How many words hold `size` bytes."""
        return -(-size * 8 // self.width)

    @property
    def header_words(self) -> int:
        """Words of a header."""
        return self.words(HEADER_LAYOUT.size // 8)

    @property
    def crc_words(self) -> int:
        """Words of a CRC."""
        return self.words(CRC_BYTES)

    def tuple_words(self, parameters: Parameters) -> int:
        """Words of a tuple."""
        return -(-tuple_layout(parameters.dims).size // self.width)

    @property
    def result_words(self) -> int:
        """Words of a result."""
        return -(-RESULT_LAYOUT.size // self.width)


def identity(parameters: Parameters, link: Link) -> str:
    """The text that a device tells about itself: its joiner as in a URL, and its link."""
    text = f"{parameters.architecture}?{parameters.options()}&link={link}"
    if len(text) > TEXT_LIMIT:
        size = len(text)
        raise ParameterError(f"a device's text must have at most {TEXT_LIMIT} bytes, not {size}: {text!r}")
    return text
