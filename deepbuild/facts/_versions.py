"""Version arithmetic that all tables share."""

from __future__ import annotations

import re
from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

_SPECIFIERS = re.compile(r"(?=[\s<>=!~])")


def minor_of(version: str) -> str | None:
    """The "major.minor" of a version string; None where it doesn't start with one.

    >>> minor_of("13.0.88"), minor_of("2.14.1+cu130"), minor_of("V12.4"), minor_of("13")
    ('13.0', '2.14', None, None)
    """
    found = re.match(r"[0-9]+\.[0-9]+", version.strip())
    return found[0] if found else None


def holds(specifiers: str, version: str | None) -> bool:
    """Whether ``version`` is known to satisfy ``specifiers`` ("" holds for all, even None).

    Raises packaging.version.InvalidVersion for a version that isn't one.
    """
    if not specifiers:
        return True
    return version is not None and _parsed(specifiers).contains(_release(version))


def project_of(requirement: str) -> str:
    """
    >>> project_of("triton>=2.1"), project_of("nvidia-cutlass")
    ('triton', 'nvidia-cutlass')
    """
    return _SPECIFIERS.split(requirement, maxsplit=1)[0].strip()


def satisfies(requirement: str, version: str) -> bool:
    """Whether an installed version, be it a pre-release, is one that a requirement asks for.

    Raises packaging.version.InvalidVersion for a version that isn't one.

    >>> satisfies("triton<3", "3.0.0a1"), satisfies("triton", "3")
    (False, True)
    """
    specifiers = requirement[len(project_of(requirement)) :]
    return _parsed(specifiers.strip()).contains(Version(version), prereleases=True)


@cache
def _parsed(specifiers: str) -> SpecifierSet:
    return SpecifierSet(specifiers)


def _release(version: str) -> Version:
    # Vendor containers carry alphas of the coming minor ("2.14.0a0+git"), which PEP 440 sorts
    # below it although they already have its headers.
    return Version(Version(version).base_version)
