"""Features of x86-64 processors, and the micro-architecture levels that they belong to."""

from __future__ import annotations

from functools import cache

import msgspec

from deepbuild.facts._load import load_rows

CPU_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")


class CpuFeatureRow(msgspec.Struct, frozen=True):
    """One feature, by iced-x86's name for it, or one instruction that is unlike its feature.

    `level` is the first that has it, "" if none does; `name` is Linux's and archspec's.
    """

    name: str
    level: str
    source: str
    feature: str = ""
    instruction: str = ""


@cache
def cpu_feature_rows() -> tuple[CpuFeatureRow, ...]:
    """Every row (source: the x86-64 psABI's levels, and per group)."""
    return load_rows("cpu_features", CpuFeatureRow)


def cpu_feature(feature: str) -> CpuFeatureRow | None:
    """The row of a feature; None where no level is known to have it.

    >>> cpu_feature("LZCNT").name, cpu_feature("LZCNT").level, cpu_feature("AVX512_BF16")
    ('abm', 'x86-64-v3', None)
    """
    return _by("feature").get(feature)


def cpu_instruction(mnemonic: str) -> CpuFeatureRow | None:
    """The row that counts for an instruction instead of its features; None where those count.

    >>> cpu_instruction("tzcnt").level, cpu_instruction("vaddps")
    ('x86-64', None)
    """
    return _by("instruction").get(mnemonic)


@cache
def _by(column: str) -> dict[str, CpuFeatureRow]:
    return {getattr(row, column): row for row in cpu_feature_rows() if getattr(row, column)}
