"""CUDA toolkits: which host compilers, architectures and drivers they go with."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Protocol, TypeVar

import msgspec
from packaging.version import Version

from deepbuild.facts._load import load_rows
from deepbuild.facts._versions import minor_of


class HostLimitRow(msgspec.Struct, frozen=True):
    """Host compilers that one toolkit takes: inclusive majors, None where unknown.

    ``cxx_std_max`` is the newest ``-std=c++NN`` of nvcc, as the number NN.
    """

    cuda: str
    source: str
    gcc_max: int | None = None
    clang_max: int | None = None
    cxx_std_max: int | None = None


class NvccArchRow(msgspec.Struct, frozen=True):
    """Capabilities that one nvcc compiles, dotted ("8.6") and in numeric order.

    ``suffixed`` holds the arch-specific (a) and family (f) variants, such as "9.0a".
    """

    cuda: str
    archs: tuple[str, ...]
    suffixed: tuple[str, ...]
    source: str


class DriverRow(msgspec.Struct, frozen=True):
    """Linux drivers that run code of one toolkit; None where unknown or not defined.

    ``same_release`` came with the toolkit: it also compiles the toolkit's PTX. ``minor_floor``
    runs finished SASS of any minor of the same major, and refuses newer PTX (cudaError 222).
    """

    cuda: str
    source: str
    same_release: str | None = None
    minor_floor: str | None = None


class _OfToolkit(Protocol):
    @property
    def cuda(self) -> str: ...


Row = TypeVar("Row", bound=_OfToolkit)


@cache
def host_limit_rows() -> tuple[HostLimitRow, ...]:
    """Every row, oldest toolkit first (source: crt/host_config.h of each, see the table)."""
    return load_rows("host_limits", HostLimitRow)


def host_limits(cuda: str) -> HostLimitRow | None:
    """The host compilers of toolkit ``cuda`` ("13.0" or "13.0.88"); None where unknown.

    >>> host_limits("13.0.88").gcc_max, host_limits("99.0")
    (15, None)
    """
    return _of(cuda, host_limit_rows())


@cache
def nvcc_arch_rows() -> tuple[NvccArchRow, ...]:
    """Every row, oldest toolkit first (source: nvcc and ptxas of each, see the table)."""
    return load_rows("nvcc_archs", _nvcc_arch_row)


def nvcc_archs(cuda: str) -> NvccArchRow | None:
    """What the nvcc of toolkit ``cuda`` compiles for; None where unknown.

    >>> nvcc_archs("13.0").archs[0], nvcc_archs("99.0")
    ('7.5', None)
    """
    return _of(cuda, nvcc_arch_rows())


def first_cuda_for(arch: str) -> str | None:
    """The oldest toolkit of the table that compiles for a capability; None where none does.

    >>> first_cuda_for("9.0"), first_cuda_for("99.0")
    ('11.8', None)
    """
    return next((row.cuda for row in nvcc_arch_rows() if arch in row.archs), None)


def last_cuda_for(arch: str) -> str | None:
    """The newest toolkit of the table that compiles for a capability; None where none does.

    >>> last_cuda_for("7.0"), last_cuda_for("99.0")
    ('12.9', None)
    """
    return next((row.cuda for row in reversed(nvcc_arch_rows()) if arch in row.archs), None)


@cache
def driver_rows() -> tuple[DriverRow, ...]:
    """Every row, oldest toolkit first (source: installer names and NVIDIA's compatibility page)."""
    return load_rows("drivers", DriverRow)


def driver_row(cuda: str) -> DriverRow | None:
    """The drivers for code of toolkit ``cuda``; None where unknown.

    >>> driver_row("12.8").minor_floor
    '525.60.13'
    """
    return _of(cuda, driver_rows())


def wheels_hold_nvcc(cuda: str) -> bool:
    """Whether the package index has an nvcc of toolkit ``cuda``: the wheels of CUDA 13 and newer
    hold one, those of 11 and 12 only ptxas, libdevice and headers (source: nvidia-cuda-nvcc 13.0,
    nvidia-cuda-nvcc-cu11 and -cu12 opened).

    >>> wheels_hold_nvcc("13.2"), wheels_hold_nvcc("12.8")
    (True, False)
    """
    return Version(cuda).major >= 13


def _nvcc_arch_row(cuda: str, archs: str, suffixed: str, source: str) -> NvccArchRow:
    return NvccArchRow(cuda, tuple(archs.split()), tuple(suffixed.split()), source)


def _of(cuda: str, rows: Iterable[Row]) -> Row | None:
    wanted = minor_of(cuda)
    return next((row for row in rows if row.cuda == wanted), None)
