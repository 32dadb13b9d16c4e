"""Version arithmetic that all tables share."""

from __future__ import annotations

import re
from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version


def minor_of(version: str) -> str | None:
    """The "major.minor" of a version string; None where it doesn't start with one.

    >>> minor_of("13.0.88"), minor_of("2.14.1+cu130"), minor_of("V12.4"), minor_of("13")
    ('13.0', '2.14', None, None)
    """
    found = re.match(r"\d+\.\d+", version.strip())
    return found[0] if found else None


def numbers(version: str) -> tuple[int, ...]:
    """A dotted version as a sort key.

    >>> numbers("10.0") > numbers("9.0")
    True
    """
    return tuple(int(part) for part in version.split("."))


def holds(specifiers: str, version: str | None) -> bool:
    """Whether ``version`` is known to satisfy ``specifiers`` ("" holds for all, even None).

    Raises packaging.version.InvalidVersion for a version that isn't one.
    """
    if not specifiers:
        return True
    return version is not None and _parsed(specifiers).contains(_release(version))


@cache
def _parsed(specifiers: str) -> SpecifierSet:
    return SpecifierSet(specifiers)


def _release(version: str) -> Version:
    # Vendor containers carry alphas of the coming minor ("2.14.0a0+git"), which PEP 440 sorts
    # below it although they already have its headers.
    return Version(Version(version).base_version)
