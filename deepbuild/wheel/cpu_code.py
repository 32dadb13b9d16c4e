"""The CPU instructions that a library's host code consists of, read without running any.

All executable sections are disassembled from end to end, by iced-x86. That shows what is *in* a
library, not what will run: code behind a question to the processor (glibc's and OpenBLAS's ways to
choose a kernel, target_clones) counts like any other. Tables between the instructions would be
read as instructions; gcc and clang put theirs into .rodata. What iced-x86 can't read is counted:
newer instructions than it knows (1.21 has neither APX nor AVX10.2) may be there. One thing can't
be seen: "rep bsf" is the same bytes as tzcnt, which compilers write for every level, so it counts
for none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section, SymbolTableSection

from deepbuild.facts.cpu_features import CPU_LEVELS, cpu_feature, cpu_instruction
from deepbuild.wheel.elf import Symbol, machine_of, symbols_of, whole_elf

if TYPE_CHECKING:
    from iced_x86 import Instruction

_EXECUTABLE = 0x4  # SHF_EXECINSTR
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC


class CpuCode(msgspec.Struct, frozen=True):
    """What a processor must have for the host code of a library.

    `level` is the lowest micro-architecture level of x86-64 that has all, but for the features
    `beyond`, which no level has; it is "" where unknown: for other machines, and on machines that
    iced-x86 has no package for. `examples` shows the first use of each feature that not every
    x86-64 processor has, as "symbol+offset: instruction". `unread` counts what iced-x86 does not
    know; above 0, `level` is the least that is needed.
    """

    level: str
    beyond: tuple[str, ...] = ()
    examples: dict[str, str] = {}
    unread: int = 0


class _Use(msgspec.Struct, frozen=True):
    """A feature where it is first used."""

    level: str
    address: int
    instruction: str


def read_cpu_code(file: BinaryIO) -> CpuCode:
    """The CPU code of an ELF library. (The 20 MB of OpenBLAS take 0.7 s.)

    Raises:
        ValueError: it is no ELF file, or not a whole one.
    """
    with whole_elf(file) as elf:
        if machine_of(elf) != "x86_64" or find_spec("iced_x86") is None:
            return CpuCode("")
        sections = [section for section in elf.iter_sections() if _holds_code(section)]
        uses, unread = _first_uses(sections)
        places = _places(elf, sections) if uses else []
        levels = {use.level for use in uses.values()}
        return CpuCode(
            level=max(levels - {""}, key=CPU_LEVELS.index, default=CPU_LEVELS[0]),
            beyond=tuple(sorted(name for name, use in uses.items() if not use.level)),
            examples={
                name: f"{_place(use.address, places)}: {use.instruction}"
                for name, use in sorted(uses.items())
            },
            unread=unread,
        )


def _holds_code(section: Section) -> bool:
    return section["sh_type"] == "SHT_PROGBITS" and bool(section["sh_flags"] & _EXECUTABLE)


def _first_uses(sections: Iterable[Section]) -> tuple[dict[str, _Use], int]:
    """Name of a feature -> its first use, and how much could not be read."""
    from iced_x86 import Code, Decoder

    uses: dict[str, _Use] = {}
    seen: set[int] = set()
    unread = 0
    for section in sections:
        for instruction in Decoder(64, section.data(), ip=section["sh_addr"]):
            code = instruction.code  # what it is, apart from its operands' values
            if code in seen:
                continue
            if code == Code.INVALID:
                unread += 1
                continue
            seen.add(code)
            for name, level in _features(instruction):
                if level != CPU_LEVELS[0] and name not in uses:
                    uses[name] = _Use(level, instruction.ip, _text(instruction))
    return uses, unread


def _features(instruction: Instruction) -> Iterator[tuple[str, str]]:
    """The names of the features that an instruction needs all of, and their levels."""
    row = cpu_instruction(_named("Mnemonic")[instruction.mnemonic].lower())
    if row:
        yield row.name, row.level
        return
    for feature in instruction.cpuid_features():
        name = _named("CpuidFeature")[feature]
        row = cpu_feature(name)
        yield (row.name, row.level) if row else (name.lower(), "")


@cache
def _named(constants: str) -> dict[int, str]:
    """The numbers of one of iced-x86's lists of constants, with their names."""
    names = vars(import_module(f"iced_x86.{constants}"))
    return {number: name for name, number in names.items() if type(number) is int}


def _text(instruction: Instruction) -> str:
    from iced_x86 import Formatter, FormatterSyntax

    return Formatter(FormatterSyntax.GAS).format(instruction)


def _places(elf: ELFFile, sections: Iterable[Section]) -> list[tuple[int, int, str]]:
    """Start, end and name of every section with code and of every function, the wider first."""
    tables = [s for s in elf.iter_sections() if isinstance(s, SymbolTableSection)]
    symbols = (symbol for table in tables for symbol in symbols_of(table))
    functions = [_span(symbol) for symbol in symbols if symbol.kind in _FUNCTIONS and symbol.size]
    starts = [(s["sh_addr"], s["sh_addr"] + s["sh_size"], s.name) for s in sections]
    return sorted([*functions, *starts], key=lambda place: (place[0], -place[1], place[2]))


def _span(symbol: Symbol) -> tuple[int, int, str]:
    return symbol.address, symbol.address + symbol.size, symbol.name


def _place(address: int, places: list[tuple[int, int, str]]) -> str:
    """The nearest function, else the section, that an address is in.

    >>> _place(0x1042, [(0x1000, 0x1100, ".text"), (0x1040, 0x1050, "go"), (0x1060, 0x1070, "on")])
    'go+0x2'
    >>> _place(0x1052, [(0x1000, 0x1100, ".text"), (0x1040, 0x1050, "go")])
    '.text+0x52'
    """
    before = places[: bisect_right(places, address, key=lambda place: place[0])]
    start, _, name = next(place for place in reversed(before) if address < place[1])
    return f"{name}+{address - start:#x}"
