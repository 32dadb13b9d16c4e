"""Why builds, installations and runs fail: what each tool says, what it means, what to do.

A row says what a line looks like, by one of:

- ``header``, ``library``, ``symbol``, ``soname``, ``module``: an expression for the name of what is
  missing. The words around it are those of every compiler, linker and language that is known
  (`deepbuild.explain.forms`), and the name is told as ``{header}``, ``{library}`` and so on.
- ``match``: expressions for the line itself, whose groups are told by their names.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from deepbuild.facts._load import load_rows, read_table

TABLES = ("compile", "link", "setup", "load", "run", "machine")
MISSING = ("header", "library", "symbol", "soname", "module")


class CauseRow(msgspec.Struct, frozen=True):
    """A cause, and the lines that tell it.

    ``code`` is stable: it is what a page is looked up by. ``title``, ``cause`` and ``fix`` are told
    with what the line names in braces; words in angle brackets in ``cause`` and ``fix`` are made
    for the machine (`deepbuild.explain.remedies`). ``anchor`` are words, one of which is in every
    such line: only lines with an anchor are looked at. ``when`` must be found somewhere in the log,
    ``unless`` must not be in the line. ``sure`` is "certain" or "likely".

    ``role`` is "cause"; or "hint", which counts where something failed and no cause is told; or
    "last", what is said where the cause stands further up, and counts where nothing else does.
    ``op`` is the op that it is about; ``explains`` are codes of what follows from it.
    ``examples`` are real lines.
    """

    code: str
    title: str
    cause: str
    fix: tuple[str, ...]
    source: str
    examples: tuple[str, ...] = ()
    match: tuple[str, ...] = ()
    header: str = ""
    library: str = ""
    symbol: str = ""
    soname: str = ""
    module: str = ""
    anchor: tuple[str, ...] = ()
    when: str = ""
    unless: str = ""
    sure: str = "certain"
    role: str = "cause"
    op: str = ""
    explains: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, str]:
        """What is missing, and the expression for its name; two empty words if neither is told."""
        found = ((kind, getattr(self, kind)) for kind in MISSING)
        return next((pair for pair in found if pair[1]), ("", ""))

    @property
    def is_link(self) -> bool:
        """Whether a linker says it."""
        return self.code.startswith("DB-2")


def _row(**cells: Any) -> CauseRow:
    for name in ("fix", "examples", "match", "anchor"):
        cell = cells.get(name, ())
        cells[name] = [cell] if isinstance(cell, str) else cell
    return msgspec.convert(cells, CauseRow)


@cache
def cause_rows() -> tuple[CauseRow, ...]:
    """Every known cause; of two that a line tells, the first one holds (source: per group)."""
    return tuple(row for table in TABLES for row in load_rows(f"causes_{table}", _row))


@cache
def own_rows() -> tuple[CauseRow, ...]:
    """What deepbuild itself says: ``match`` is for the first line of its errors, and for the codes
    of a plan's blockers."""
    return load_rows("causes_own", _row)


def code_of(message: str) -> str:
    """The stable code of one of deepbuild's own errors or blockers.

    >>> code_of("no torch in /opt/env/bin/python"), code_of("NO_TOOLKIT")
    ('DB-9202', 'DB-9001')
    """
    first = message.partition("\n")[0]
    rows = (row for row in own_rows() for each in row.match if re.match(each, first))
    return next((row.code for row in rows), "")


class NoiseRow(msgspec.Struct, frozen=True):
    """A line that only says that something before it failed, and ``why`` it is no cause."""

    match: str
    anchor: tuple[str, ...]
    why: str
    source: str


@cache
def noise_rows() -> tuple[NoiseRow, ...]:
    """Every line that is known to be a consequence (source: per group)."""
    return load_rows("causes_noise", _noise)


def _noise(*, anchor: str | list[str], **cells: str) -> NoiseRow:
    anchors = (anchor,) if isinstance(anchor, str) else tuple(anchor)
    return NoiseRow(anchor=anchors, **cells)


@cache
def success_lines() -> tuple[str, tuple[str, ...]]:
    """The expression for lines that say that a build went well, and the anchors of it."""
    (row,) = read_table("causes_noise")["wells"]
    return row["match"], tuple(row["anchor"])


@cache
def harmless_lines() -> str:
    """The expression for lines that look like errors, and are said where all goes well."""
    (row,) = read_table("causes_noise")["wells"]
    return str(row["harmless"])
