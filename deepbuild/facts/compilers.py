"""gcc: what each release's C++ library brings, and which releases a distribution offers."""

from __future__ import annotations

from functools import cache

import msgspec
from packaging.version import Version

from deepbuild.facts._load import load_rows


class GccRow(msgspec.Struct, frozen=True):
    """One gcc major, and the newest GLIBCXX version of its libstdc++."""

    gcc: int
    glibcxx: str
    source: str


class DistributionRow(msgspec.Struct, frozen=True):
    """The gcc majors that one release of a distribution offers, oldest first."""

    ids: tuple[str, ...]
    version: str
    gcc: tuple[int, ...]
    source: str


@cache
def gcc_rows() -> tuple[GccRow, ...]:
    """Every row, oldest gcc first (source: libstdc++'s ABI history)."""
    return load_rows("gcc_releases", GccRow)


def glibcxx_of_gcc(major: int) -> str | None:
    """The newest GLIBCXX version that code of a gcc may need; None where unknown.

    >>> glibcxx_of_gcc(12), glibcxx_of_gcc(99)
    ('3.4.30', None)
    """
    return next((row.glibcxx for row in gcc_rows() if row.gcc == major), None)


def newest_gcc_for(level: str) -> int | None:
    """The newest gcc whose code a libstdc++ with this GLIBCXX version loads; None if none is known.

    >>> newest_gcc_for("3.4.29"), newest_gcc_for("3.4.1")
    (11, None)
    """
    fitting = [row.gcc for row in gcc_rows() if Version(row.glibcxx) <= Version(level or "0")]
    return max(fitting, default=None)


@cache
def distribution_rows() -> tuple[DistributionRow, ...]:
    """Every row (source: the distributions' package lists)."""
    return load_rows("distributions", _distribution_row)


def gccs_of(distribution: str, version: str) -> tuple[int, ...]:
    """The gcc majors that a distribution offers; () where unknown.

    >>> gccs_of("debian", "12"), gccs_of("rocky", "9.4"), gccs_of("slackware", "15")
    ((11, 12), (12, 13, 14), ())
    """
    for row in distribution_rows():
        if distribution in row.ids and f"{version}.".startswith(f"{row.version}."):
            return row.gcc
    return ()


def _distribution_row(*, ids: str, version: str, gcc: str, source: str) -> DistributionRow:
    majors = tuple(int(major) for major in gcc.split())
    return DistributionRow(tuple(ids.split()), version, majors, source)
