"""A log, however large and however wrapped: the few lines of it that are worth a look."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterator
from typing import BinaryIO

import msgspec

from deepbuild.errors import UsageError

try:
    import re2 as quick  # one pass over the log, whatever the number of words
except ImportError:  # no such wheel for every machine: the same, only slower
    import re as quick

_BLOCK = 16 * 2**20
_GZIP = zlib.MAX_WBITS | 16
_LONGEST = 4000  # of a line that is looked at; what is around an anchor in a longer one
_AROUND = 100_000  # bytes before a line, which tell what was compiled
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]"
)
# What others put before a line: container builds, CI, ranks of a job, pip.
_WRAPPED = re.compile(
    r"^(?:#\d+ \d+\.\d+ |\d{4}-\d\d-\d\dT[\d:.]+Z? |\[(?:rank|default)?\d+\]: ?|\d+: (?=\S)"
    r"|\s*[│|] )*\s*"
)


class Line(msgspec.Struct, frozen=True):
    """A line that has an anchor: its number, what it says without what is wrapped around it, and
    what came before it."""

    number: int
    text: str
    before: bytes


class Lines:
    """The lines of a log that have one of the anchors, in their order; `count` is how many lines
    have been read."""

    def __init__(self, stream: BinaryIO, anchors: Collection[bytes]) -> None:
        self.count = 0
        self._stream = stream
        self._anchors = quick.compile(b"|".join(map(re.escape, sorted(anchors))))

    def __iter__(self) -> Iterator[Line]:
        before = b""
        for block in _blocks(self._stream):
            yield from self._of_block(block, before)
            self.count += block.count(b"\n") + (not block.endswith(b"\n"))
            before = block[-_AROUND:]

    def _of_block(self, block: bytes, before: bytes) -> Iterator[Line]:
        number, last, end = self.count + 1, 0, 0
        for match in self._anchors.finditer(block):
            place = match.start()
            if place < end:  # another one in the same line
                continue
            start = block.rfind(b"\n", 0, place) + 1
            number, last = number + block.count(b"\n", last, start), start
            end = block.find(b"\n", place) + 1 or len(block)
            raw = block[start:end]
            if len(raw) > _LONGEST:
                raw = block[max(start, place - _LONGEST // 2) : min(end, place + _LONGEST // 2)]
            context = block[max(0, start - _AROUND) : start]
            yield Line(number, clean(raw), (before + context)[-_AROUND:])


def clean(raw: bytes) -> str:
    """
    >>> clean(b"#12 3.456   \\x1b[31mfatal\\x1b[0m error: x\\r")
    'fatal error: x'
    """
    return _WRAPPED.sub("", _ANSI.sub("", raw.decode("utf-8", "replace"))).rstrip()


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """In whole lines, unless one is longer than a block."""
    rest = b""
    for part in _unpacked(stream):
        rest += part
        if len(rest) >= _BLOCK:
            cut = rest.rfind(b"\n") + 1 or len(rest)
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _unpacked(stream: BinaryIO) -> Iterator[bytes]:
    """
    Raises:
        UsageError: it begins like a gzip file, and is none.
    """
    first = stream.read(_BLOCK)
    if first[:2] != b"\x1f\x8b":
        while first:
            yield first
            first = stream.read(_BLOCK)
        return
    unpacker = zlib.decompressobj(wbits=_GZIP)
    try:
        while first:
            yield unpacker.decompress(first, _BLOCK)
            first = unpacker.unconsumed_tail or unpacker.unused_data or stream.read(_BLOCK)
            if unpacker.eof and first:  # several that were put together
                unpacker = zlib.decompressobj(wbits=_GZIP)
        if not unpacker.eof:
            raise zlib.error("it ends in the middle")
    except zlib.error as error:
        raise UsageError(
            "the log is not a whole gzip file",
            found=str(error),
            wanted="text, or text that gzip packed",
            hint="copy it again; zcat tells how much of it is whole",
        ) from None
