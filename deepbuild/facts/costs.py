"""What compiling DeepSpeed's files took, where it was measured."""

from __future__ import annotations

from functools import cache

import msgspec

from deepbuild.facts._load import load_rows


class CompileCostRow(msgspec.Struct, frozen=True):
    """One file: seconds of one core with device code for one arch, MiB of memory at the peak, and
    KiB of its object."""

    source_file: str
    role: str
    seconds: float
    peak_mib: int
    kib: int
    source: str


class CompileCost(msgspec.Struct, frozen=True):
    """`measured` tells a row of the table from a guess; `peak` is in bytes."""

    seconds: float
    peak: int
    kib: float
    measured: bool


_GUESSES = {"nvcc": (30.0, 1300, 120), "g++": (25.0, 1300, 150)}  # seconds, MiB, KiB
# Of a file with device code: what each arch adds to one arch's time, and its share of the object
# (multi_tensor_adam.cu, nvcc 13.0: 8.0 alone and with 9.0).
_ARCH_SECONDS, _ARCH_SIZE = 0.35, 0.8


@cache
def compile_cost_rows() -> tuple[CompileCostRow, ...]:
    return load_rows("compile_costs", CompileCostRow)


@cache
def _by_file() -> dict[tuple[str, str], CompileCostRow]:
    return {(row.source_file, row.role): row for row in compile_cost_rows()}


def compile_cost(source: str, role: str, arches: int) -> CompileCost:
    """What a file of a tree takes; a guess by its language for one that was never measured.

    Args:
        source: relative to the tree, such as "csrc/adam/multi_tensor_adam.cu".
        role: "g++", "gcc" or "nvcc".
    """
    row = _by_file().get((source, role))
    known = (row.seconds, row.peak_mib, row.kib) if row else _GUESSES.get(role, _GUESSES["g++"])
    seconds, mib, kib = known
    more = max(0, arches - 1) if role == "nvcc" else 0
    return CompileCost(
        seconds * (1 + _ARCH_SECONDS * more),
        mib * 2**20,
        kib * (1 + _ARCH_SIZE * more),
        row is not None,
    )
