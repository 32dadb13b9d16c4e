"""Objects and libraries that are cut short: a power cut, a full disk or a copy leaves files that
look finished by their dates, and are not."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

# An ELF header of 64 bits (elf(5)): where the table of sections begins, the size of an entry, and
# how many there are.
_SECTIONS = struct.Struct("<40xQ10xHH2x")
_LEAST_HEADER = 2**16  # bytes of a precompiled header: even an empty one is larger


def discard_damaged(site: Path) -> list[str]:
    """Remove what is not whole, so that it is made again; their names."""
    made = [
        *site.glob("objects/**/*"),
        *site.glob("libraries/**/*"),
        *site.glob("headers/**/*.gch"),
    ]
    damaged = [path for path in made if path.is_file() and not _is_whole(path)]
    for path in damaged:
        with contextlib.suppress(OSError):
            path.unlink()
    return [path.name for path in damaged]


def _is_whole(path: Path) -> bool:
    size = path.stat().st_size
    if path.suffix == ".gch":
        return size > _LEAST_HEADER
    if path.suffix != ".o" and ".so" not in path.name:
        return True
    with path.open("rb") as file:
        head = file.read(_SECTIONS.size)
    if len(head) < _SECTIONS.size or head[:4] != b"\x7fELF":
        return False
    begin, entry, count = _SECTIONS.unpack(head)
    return size >= int(begin) + int(entry) * int(count)
