"""The platform tag that a wheel will probably carry; what is in it decides in the end."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import Version

from deepbuild import facts
from deepbuild.model import Compiler, Machine, Op

# What torch, and the wheels that it requires, bring along (their names in link flags).
_OF_TORCH = {"cudart", "cublas", "cublasLt", "curand", "cusolver", "cusparse", "cufft", "nccl"}
_OF_SYSTEM = {"m", "pthread", "dl", "rt", "stdc++", "gomp"}
# The versions of glibc in which symbols that all programs want got new versions, or new names: exp
# and log, whether there are threads, libpthread and libdl in libc, strtol (glibc's NEWS of each).
_TURNS = ("2.17", "2.29", "2.32", "2.34", "2.38")


def expected_platform(machine: Machine, compiler: Compiler | None, ops: Iterable[Op]) -> str:
    """By the libraries that ops name, this machine's glibc and what its compiler's code needs."""
    arch = machine.system.arch
    name, _, version = machine.system.libc.partition(" ")
    named = {library for op in ops for library in op.libraries}
    if name != "glibc" or compiler is None or named - _OF_TORCH - _OF_SYSTEM:
        return f"linux_{arch}"
    wanted = {"GLIBC": _turn_before(version)}
    if compiler.glibcxx:
        wanted["GLIBCXX"] = compiler.glibcxx
    oldest = facts.oldest_glibc(wanted)
    return f"manylinux_{oldest.replace('.', '_')}_{arch}" if oldest else f"linux_{arch}"


def _turn_before(version: str) -> str:
    """
    >>> _turn_before("2.36"), _turn_before("2.12")
    ('2.34', '2.17')
    """
    before = [turn for turn in _TURNS if Version(turn) <= Version(version)]
    return before[-1] if before else _TURNS[0]
