"""Platform tags: what a wheel may need of a system."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec
from packaging.version import Version

from deepbuild.facts._load import load_rows, read_table


class ManylinuxRow(msgspec.Struct, frozen=True):
    """One glibc ("2.34"), and the newest symbol versions of a system that has it."""

    glibc: str
    glibcxx: str
    cxxabi: str
    gcc: str
    source: str

    def allows(self, versions: Mapping[str, str]) -> bool:
        """Whether symbol versions by family ("GLIBC": "2.34") are all there."""
        names = ("glibc", "glibcxx", "cxxabi", "gcc")
        newest = {name.upper(): Version(getattr(self, name)) for name in names}
        known = ((newest[f], Version(v)) for f, v in versions.items() if f in newest)
        return all(wanted <= there for there, wanted in known)


@cache
def manylinux_rows() -> tuple[ManylinuxRow, ...]:
    """Every row, oldest glibc first."""
    return load_rows("manylinux", ManylinuxRow)


def system_libraries() -> frozenset[str]:
    """The libraries, by soname, that every system with a tag has."""
    return frozenset(read_table("manylinux")["libraries"])


def oldest_glibc(versions: Mapping[str, str]) -> str | None:
    """The oldest glibc whose systems have these symbol versions; None past the end of the table.

    >>> oldest_glibc({"GLIBC": "2.32", "GLIBCXX": "3.4.30"}), oldest_glibc({"GLIBC": "9.9"})
    ('2.35', None)
    """
    return next((row.glibc for row in manylinux_rows() if row.allows(versions)), None)
