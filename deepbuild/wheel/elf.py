"""What a shared library says of itself: what it needs, what it gives, and where it looks."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import BinaryIO

import msgspec
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import NoteSection, Section

_SYMBOL = "IBBHQQ"  # Elf64_Sym: name, info, other, section, value, size
_LOCAL, _WEAK = 0, 2
_VERSION_ENTRY = 16  # bytes of an Elf64_Verneed, and of an Elf64_Vernaux
_VERSION = re.compile(r"(.+?)_(\d+(?:\.\d+)*)")


class Library(msgspec.Struct, frozen=True):
    """A library as its dynamic section and its section table tell.

    `versions` is the newest symbol version that it needs of each family ("GLIBC" -> "2.34");
    `unnumbered` are those that have no number, such as GLIBC_ABI_DT_RELR (which glibc has from
    2.36 on). `wanted` are the symbols that it can't be loaded without, `given` those that others
    may use. `debug` names its sections of debug info.
    """

    machine: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    run_paths: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    unnumbered: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    debug: tuple[str, ...] = ()
    build_id: str = ""


class Symbol(msgspec.Struct, frozen=True):
    """One row of a symbol table; `section` is 0 where it is defined elsewhere."""

    name: str
    kind: int
    binding: int
    section: int
    address: int
    size: int


def read_library(file: BinaryIO) -> Library:
    """Read a shared library.

    Raises:
        ValueError: it is none, is cut short, or is of a 32-bit machine.
    """
    with whole_elf(file) as elf:
        sections = list(elf.iter_sections())
        tags = _dynamic(sections)
        symbols = [s for section in _of_type(sections, "SHT_DYNSYM") for s in symbols_of(section)]
        numbered, unnumbered = _versions(_version_names(sections))
        return Library(
            machine=machine_of(elf),
            soname="".join(tags.get("DT_SONAME", ())[:1]),
            needed=tuple(tags.get("DT_NEEDED", ())),
            run_paths=_run_paths(tags),
            versions=numbered,
            unnumbered=unnumbered,
            wanted=_names(s for s in symbols if not s.section and s.binding != _WEAK),
            given=_names(s for s in symbols if s.section),
            debug=tuple(s.name for s in sections if s.name.startswith((".debug_", ".zdebug_"))),
            build_id=_build_id(sections),
        )


@contextmanager
def whole_elf(file: BinaryIO) -> Iterator[ELFFile]:
    """An ELF file with all of its sections inside. What fails while it is read is a ValueError too.

    Raises:
        ValueError: not an ELF file, of a 32-bit machine, or damaged.
    """
    try:
        elf = ELFFile(file)
        _refuse_cut(elf, file.seek(0, 2))
        yield elf
    except Exception as error:  # pyelftools raises a dozen kinds on foreign bytes
        raise ValueError(f"not a whole ELF file: {error or type(error).__name__}") from None


def _refuse_cut(elf: ELFFile, length: int) -> None:
    """Nothing below reads past the end of the file, or as many rows as a damaged number says."""
    if elf.elfclass != 64:
        raise ValueError("it is of a 32-bit machine")
    if elf["e_shoff"] and elf["e_shentsize"] != 64:
        raise ValueError("its section table has rows of another size")
    if elf["e_shoff"] + elf.num_sections() * 64 > length:
        raise ValueError("its section table is cut short")
    for section in elf.iter_sections():
        end = section["sh_offset"] + section["sh_size"]
        if section["sh_type"] != "SHT_NOBITS" and end > length:
            raise ValueError(f"section {section.name} is cut short")


def machine_of(elf: ELFFile) -> str:
    """The machine, as `uname -m` names the usual ones: "x86_64", "aarch64", "ppc64"."""
    return str(elf["e_machine"]).removeprefix("EM_").lower()


def symbols_of(section: Section) -> Iterator[Symbol]:
    """The rows of a symbol table that have a name.

    pyelftools' own rows take 0.4 s for the 11,000 symbols of OpenBLAS, these 0.03 s.

    Raises:
        ValueError: a name that does not end.
    """
    row = struct.Struct(("<" if section.elffile.little_endian else ">") + _SYMBOL)
    names = section.elffile.get_section(section["sh_link"]).data()
    data = section.data()
    whole = len(data) - len(data) % row.size
    for name, info, _, index, value, size in row.iter_unpack(data[:whole]):
        if name:
            text = names[name : names.index(b"\0", name)].decode("utf-8", "replace")
            yield Symbol(text, info & 15, info >> 4, index, value, size)


def _of_type(sections: Iterable[Section], kind: str) -> list[Section]:
    return [section for section in sections if section["sh_type"] == kind]


def _dynamic(sections: Iterable[Section]) -> dict[str, list[str]]:
    """The texts of the dynamic section, by tag."""
    section = next((s for s in sections if isinstance(s, DynamicSection)), None)
    if section is None:
        raise ValueError("it is no shared library")
    texts: dict[str, list[str]] = {}
    for tag in section.iter_tags():
        for name in ("needed", "soname", "rpath", "runpath"):
            if hasattr(tag, name):
                texts.setdefault(str(tag.entry.d_tag), []).append(str(getattr(tag, name)))
    return texts


def _run_paths(tags: dict[str, list[str]]) -> tuple[str, ...]:
    lists = [*tags.get("DT_RPATH", ()), *tags.get("DT_RUNPATH", ())]
    return tuple(path for each in lists for path in each.split(":") if path)


def _version_names(sections: Iterable[Section]) -> Iterator[str]:
    """All symbol versions that are needed: no more than fit into their section."""
    for section in sections:
        if isinstance(section, GNUVerNeedSection):
            names = (aux.name for _, auxes in section.iter_versions() for aux in auxes)
            yield from islice(names, section["sh_size"] // _VERSION_ENTRY)


def _versions(names: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """
    >>> _versions(["GLIBC_2.4", "GLIBC_2.34", "CXXABI_1.3.9", "GLIBC_ABI_DT_RELR"])
    ({'CXXABI': '1.3.9', 'GLIBC': '2.34'}, ('GLIBC_ABI_DT_RELR',))
    """
    found = {name: _VERSION.fullmatch(name) for name in names}
    pairs = [(match[1], match[2]) for match in found.values() if match]
    pairs.sort(key=lambda pair: (pair[0], [int(part) for part in pair[1].split(".")]))
    return dict(pairs), tuple(sorted(name for name, match in found.items() if not match))


def _names(symbols: Iterable[Symbol]) -> tuple[str, ...]:
    return tuple(sorted({symbol.name for symbol in symbols if symbol.binding != _LOCAL}))


def _build_id(sections: Iterable[Section]) -> str:
    notes = (s for s in sections if isinstance(s, NoteSection) and s.name.endswith(".build-id"))
    return next((str(note["n_desc"]) for section in notes for note in section.iter_notes()), "")


def embedded_paths(data: bytes, folders: Iterable[str]) -> tuple[str, ...]:
    """Where any of these folders is named in a file: each with what follows it there, 5 at most.

    >>> embedded_paths(b"\\0/home/me/x.cpp\\0/home/men/y\\0", ["/home/me"])
    ('/home/me/x.cpp',)
    """
    found: dict[str, None] = {}
    for folder in folders:
        name = re.escape(folder.rstrip("/").encode("utf-8", "surrogateescape"))
        # a name goes on where it is another folder's: /home/me is not in /home/men
        for match in re.finditer(name + rb"(?![\w.+~-])[ -~]{0,80}", data) if name else ():
            found[match[0].decode("utf-8", "replace")] = None
            if len(found) == 5:
                return tuple(found)
    return tuple(found)
