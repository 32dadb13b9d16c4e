"""PyTorch releases: their CUDA variants and the C++ standard of their headers."""

from __future__ import annotations

from functools import cache

import msgspec

from deepbuild.facts._load import load_rows
from deepbuild.facts._versions import minor_of


class TorchRow(msgspec.Struct, frozen=True):
    """One torch minor ("2.14"). CUDA variants are toolkit minors, C++ standards numbers (20).

    ``min_cxx_std`` is what the headers demand of gcc and clang; ``default_cxx_std`` what torch
    passes when an extension names no standard (None where unknown).
    """

    torch: str
    cuda_variants: tuple[str, ...]
    pypi_cuda: str
    min_cxx_std: int
    default_cxx_std: int | None
    source: str


@cache
def torch_rows() -> tuple[TorchRow, ...]:
    """Every row, oldest torch first (source: PyTorch's release scripts and headers, per row)."""
    return load_rows("torch", _torch_row)


def torch_row(version: str) -> TorchRow | None:
    """The row of a torch version; None where unknown.

    >>> torch_row("2.14.1+cu130").min_cxx_std, torch_row("99.0")
    (20, None)
    """
    wanted = minor_of(version)
    return next((row for row in torch_rows() if row.torch == wanted), None)


def _torch_row(
    *,
    torch: str,
    cuda_variants: str,
    pypi_cuda: str,
    min_cxx_std: int,
    source: str,
    default_cxx_std: int | None = None,
) -> TorchRow:
    variants = tuple(cuda_variants.split())
    return TorchRow(torch, variants, pypi_cuda, min_cxx_std, default_cxx_std, source)
