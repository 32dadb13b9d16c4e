"""The device code inside a shared library, read without a CUDA toolkit.

nvcc puts fat binaries into the section .nv_fatbin: containers with a 16-byte header (magic
0xBA55ED50, version, header size, size), each holding entries with a 64-byte header that names the
kind (1 PTX, 2 cubin), its own sizes and the architecture (CUDA's fatbinary_section.h has the
magic; the entries' layout is as public disassemblers document it, and was checked against files
made by nvcc 13.0).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHI")
_MAGIC = 0xBA55ED50
_PTX, _CUBIN = 1, 2


@dataclass(frozen=True)
class DeviceCode:
    """The capabilities that a library has machine code (SASS) and PTX for."""

    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()


def read_device_code(file: BinaryIO) -> DeviceCode:
    """The device code of an ELF library.

    Raises:
        ValueError: not an ELF file, or its .nv_fatbin is cut short.
    """
    try:
        section = ELFFile(file).get_section_by_name(".nv_fatbin")
        data = section.data() if section else b""
    except (ELFError, struct.error, ValueError, OverflowError) as error:
        raise ValueError(f"not a whole ELF file: {error}") from None
    found = set(_entries(data))
    return DeviceCode(
        tuple(_dotted(number) for number in sorted(n for kind, n in found if kind == _CUBIN)),
        tuple(_dotted(number) for number in sorted(n for kind, n in found if kind == _PTX)),
    )


def _dotted(number: int) -> str:
    return f"{number // 10}.{number % 10}"


def _entries(data: bytes) -> Iterator[tuple[int, int]]:
    """Kind and architecture number of every entry in every container."""
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


def _entries_of(data: bytes, position: int, end: int) -> Iterator[tuple[int, int]]:
    while position + _ENTRY.size <= end:
        kind, _, header, size, _, _, _, _, arch = _ENTRY.unpack_from(data, position)
        if header < _ENTRY.size:
            raise ValueError("a fat binary's entry has no header")
        position += header + size
        if position > end:
            raise ValueError("a fat binary's entry is cut short")
        yield kind, arch
