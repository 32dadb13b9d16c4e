"""The device code inside a shared library, read without a CUDA toolkit.

nvcc puts fat binaries into the section .nv_fatbin: containers with a 16-byte header (magic
0xBA55ED50, version, header size, size), each holding entries with a header of 64 bytes or more that
names the kind (1 PTX, 2 cubin), its own sizes, the architecture and flags (CUDA's
fatbinary_section.h has the magic; the entries' layout is as public disassemblers document it, and
was checked against files made by nvcc 13.0).

Bit 20 of the flags is set for architecture-specific code (sm_90a) and bit 21 for family-specific
code (sm_100f), be it SASS or PTX, compressed or not. That was seen in what these made: nvcc 13.0
(9.0, 9.0a, 10.0, 10.0a, 10.0f, 12.0a, 12.0f), nvFatbin 12.4 (9.0, 9.0a, 10.0a, 12.0a) and nvFatbin
12.9 (those and PTX for 10.0f); and cuobjdump 13.1 calls PTX sm_90a or sm_90f as these bits are set
by hand. Fat binaries of CUDA 12.0 to 12.3 were not seen: code that says 9.0 there may be 9.0a.
Nothing else tells as much: PTX is mostly compressed, and a cubin's e_flags say "a" in CUDA 12.8 but
not in 13.0, and never "f".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from deepbuild.wheel.elf import whole_elf

_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_MAGIC = 0xBA55ED50
_PTX, _CUBIN = 1, 2
_VARIANT_BITS = 20  # flags >> this & 3
_VARIANTS = ("", "a", "f", "?")  # both bits at once were never seen


@dataclass(frozen=True)
class DeviceCode:
    """The capabilities that a library has machine code (SASS) and PTX for: "9.0", "9.0a", "10.0f";
    "9.0?" for a variant that is not known."""

    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()


def read_device_code(file: BinaryIO) -> DeviceCode:
    """The device code of an ELF library.

    Raises:
        ValueError: not an ELF file, or its .nv_fatbin is cut short.
    """
    with whole_elf(file) as elf:
        section = elf.get_section_by_name(".nv_fatbin")
        data = section.data() if section else b""
    found = sorted(set(_entries(data)))
    return DeviceCode(
        tuple(_dotted(arch, variant) for kind, arch, variant in found if kind == _CUBIN),
        tuple(_dotted(arch, variant) for kind, arch, variant in found if kind == _PTX),
    )


def _dotted(arch: int, variant: int) -> str:
    """
    >>> _dotted(90, 1), _dotted(120, 0)
    ('9.0a', '12.0')
    """
    return f"{arch // 10}.{arch % 10}{_VARIANTS[variant]}"


def _entries(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, architecture number and variant of every entry in every container."""
    position = 0
    while position + _CONTAINER.size <= len(data):
        magic, _, header, size = _CONTAINER.unpack_from(data, position)
        if magic != _MAGIC:
            position += 8  # containers are aligned, with zeros between them
            continue
        end = position + header + size
        if end > len(data):
            raise ValueError("the last fat binary is cut short")
        yield from _entries_of(data, position + header, end)
        position = end


def _entries_of(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    while position + _ENTRY.size <= end:
        kind, _, header, size, *_, arch, _, _, flags = _ENTRY.unpack_from(data, position)
        if header < _ENTRY.size:
            raise ValueError("a fat binary's entry has no header")
        position += header + size
        if position > end:
            raise ValueError("a fat binary's entry is cut short")
        yield kind, arch, flags >> _VARIANT_BITS & 3
