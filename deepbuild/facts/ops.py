"""DeepSpeed ops: what they need without saying so, and which combinations can't build."""

from __future__ import annotations

from functools import cache

import msgspec

from deepbuild.facts._load import load_rows
from deepbuild.facts._versions import holds

# Stands for an op name in DefectRow.op: every op whose builder derives from CUDAOpBuilder. The
# tree says which those are, so no list of names has to be kept here.
EVERY_CUDA_OP = "*cuda"


class OpNeedRow(msgspec.Struct, frozen=True):
    """Something that an op needs and its builder's link flags don't tell.

    ``kind`` and ``probe`` say how to look for it: "header" (a path below an include folder),
    "python" (a module to import), "library" (a name for -l), "torch" (the torch version).
    ``name`` is what to tell the user; for "python" and "torch" it is a PEP 508 requirement.
    ``releases`` is a specifier set of DeepSpeed releases ("" = all).
    """

    op: str
    kind: str
    name: str
    probe: str
    releases: str
    source: str


class DefectRow(msgspec.Struct, frozen=True):
    """A combination whose source can't build, whatever the machine.

    ``op`` is an op's name or EVERY_CUDA_OP. ``releases`` (of DeepSpeed), ``toolkits`` and
    ``torch`` are specifier sets ("" = all). ``fix`` tells the user what to do instead.
    """

    op: str
    releases: str
    toolkits: str
    torch: str
    reason: str
    fix: str
    source: str


class CaveatRow(msgspec.Struct, frozen=True):
    """An op that builds and loads, and computes wrongly.

    ``releases`` is a specifier set of DeepSpeed releases; ``code`` is "avx" where only code with
    AVX instructions is wrong, "" for all. ``fix`` tells the user what to do instead.
    """

    op: str
    releases: str
    code: str
    wrong: str
    fix: str
    source: str


@cache
def op_need_rows() -> tuple[OpNeedRow, ...]:
    """Every need of the table (source: DeepSpeed's op_builder files, per row)."""
    return load_rows("op_needs", OpNeedRow)


def op_needs(op: str, release: str) -> tuple[OpNeedRow, ...]:
    """What ``op`` of DeepSpeed ``release`` needs beyond what its builder declares.

    Raises packaging.version.InvalidVersion for a release that isn't a version.

    >>> [need.probe for need in op_needs("dc", "0.19.8")]
    ['nccl.h']
    """
    return tuple(row for row in op_need_rows() if row.op == op and holds(row.releases, release))


@cache
def defect_rows() -> tuple[DefectRow, ...]:
    """Every known defect, one row an op (source: compiled or read, per row)."""
    return tuple(row for rows in load_rows("defects", _defect_rows) for row in rows)


def defects(
    op: str, release: str, toolkit: str | None, torch: str | None, derives_cuda: bool
) -> tuple[DefectRow, ...]:
    """Why ``op`` of DeepSpeed ``release`` can't build with this toolkit and torch; () if it may.

    ``derives_cuda`` is whether its builder derives from CUDAOpBuilder. An unknown toolkit or
    torch (None) meets only the defects that don't depend on it.
    Raises packaging.version.InvalidVersion for a string that isn't a version.

    >>> [row.op for row in defects("fp_quantizer", "0.19.8", "13.0", "2.14.1", True)]
    ['fp_quantizer']
    >>> defects("fused_adam", "0.19.8", "13.0", "2.14.1", True)
    ()
    """
    names = {op, EVERY_CUDA_OP} if derives_cuda else {op}
    return tuple(
        row
        for row in defect_rows()
        if row.op in names
        and holds(row.releases, release)
        and holds(row.toolkits, toolkit)
        and holds(row.torch, torch)
    )


@cache
def caveat_rows() -> tuple[CaveatRow, ...]:
    """Every op that is known to compute wrongly (source: compiled and compared, per group)."""
    return load_rows("caveats", CaveatRow)


def caveats(op: str, release: str, *, avx: bool) -> tuple[CaveatRow, ...]:
    """What ``op`` of DeepSpeed ``release`` computes wrongly; () if nothing is known.

    ``avx`` is whether it is compiled with AVX instructions (AVX2 or AVX-512).
    Raises packaging.version.InvalidVersion for a release that isn't a version.

    >>> [row.wrong for row in caveats("cpu_adagrad", "0.19.7", avx=True)]
    ['its code for AVX does not let weights decay']
    >>> caveats("cpu_adagrad", "0.19.7", avx=False)
    ()
    """
    return tuple(
        row
        for row in caveat_rows()
        if row.op == op and holds(row.releases, release) and (avx or not row.code)
    )


def _defect_rows(*, ops: str, source: str, **cells: str) -> tuple[DefectRow, ...]:
    defaults = {"toolkits": "", "torch": ""}
    return tuple(DefectRow(op=op, source=source, **{**defaults, **cells}) for op in ops.split())
