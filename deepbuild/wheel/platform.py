"""The platform tag that a wheel may carry, by what its libraries need."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

import msgspec
from packaging.version import Version

from deepbuild import facts
from deepbuild.model import BuiltOp

SYSTEM, TORCH, DRIVER, OTHER = "system", "torch", "driver", "other"
_DRIVER = "libcuda.so.1"
_PLATFORM = re.compile(r"(?:linux|manylinux_2_(?P<minor>[0-9]+))_(?P<arch>.+)")


class Platform(msgspec.Struct, frozen=True):
    tag: str
    reason: str


def providers_of(ops: Iterable[BuiltOp], of_torch: Collection[str]) -> dict[str, str]:
    """Whose each library is that ops need.

    Args:
        of_torch: the sonames that torch, and what it requires, bring along.
    """
    system = facts.system_libraries()

    def provider(name: str) -> str:
        if name in system or name.startswith("ld-linux"):
            return SYSTEM
        if name in of_torch:
            return TORCH
        return DRIVER if name == _DRIVER else OTHER

    return {name: provider(name) for name in sorted({n for op in ops for n in op.needed})}


def newest_versions(ops: Iterable[BuiltOp]) -> dict[str, str]:
    """The newest symbol version that any of them wants, by family.

    >>> newest_versions([BuiltOp("a", "a.so", 1, versions={"GLIBC": "2.9"}),
    ...                  BuiltOp("b", "b.so", 1, versions={"GLIBC": "2.34"})])
    {'GLIBC': '2.34'}
    """
    newest: dict[str, str] = {}
    for op in ops:
        for family, version in op.versions.items():
            if Version(version) > Version(newest.get(family, "0")):
                newest[family] = version
    return newest


def platform_tag(wheel: str) -> str:
    """
    >>> platform_tag("deepspeed-0.19.8-cp311-cp311-manylinux_2_34_x86_64.whl")
    'manylinux_2_34_x86_64'
    """
    return wheel.removesuffix(".whl").rpartition("-")[2]


def honest_platform(
    planned: str, ops: Collection[BuiltOp], providers: Mapping[str, str]
) -> Platform:
    """The planned platform if the libraries keep to it, else the one that they need."""
    parts = _PLATFORM.fullmatch(planned)
    if parts is None or not ops:
        return Platform(planned, "nothing in it depends on the system")
    found = platform_of(ops, providers, parts["arch"])
    needed = _PLATFORM.fullmatch(found.tag)
    if parts["minor"] is None:  # linux: it promises nothing
        return Platform(planned, found.reason)
    kept = needed and needed["minor"] and int(needed["minor"]) <= int(parts["minor"])
    return Platform(planned, found.reason) if kept else found


def platform_of(ops: Collection[BuiltOp], providers: Mapping[str, str], arch: str) -> Platform:
    """manylinux where the libraries need only what every such system, or torch, has.

    Args:
        arch: the machine's, as tags name it ("x86_64").
    """
    versions = newest_versions(ops)
    glibc = facts.oldest_glibc(versions)
    others = [name for name, whose in providers.items() if whose in {OTHER, DRIVER}]
    if others:
        named = ", ".join(others)
        return Platform(f"linux_{arch}", f"ops need {named}, which not all systems have")
    wanted = ", ".join(f"{family}_{version}" for family, version in sorted(versions.items()))
    if glibc is None:
        return Platform(f"linux_{arch}", f"newer than all known systems: {wanted}")
    return Platform(f"manylinux_{glibc.replace('.', '_')}_{arch}", f"needs {wanted}")
