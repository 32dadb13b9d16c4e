"""The optimizers that a DeepSpeed config may name, and the ops that they load."""

from __future__ import annotations

from functools import cache

import msgspec

from deepbuild.facts._load import load_rows


class OptimizerRow(msgspec.Struct, frozen=True):
    """One optimizer; `gpu` and `cpu` are ops, "" for none; `torch` for a class of torch.optim."""

    type: str
    source: str
    gpu: str = ""
    cpu: str = ""
    torch: bool = False


@cache
def optimizer_rows() -> tuple[OptimizerRow, ...]:
    """Every optimizer of the table (source: DeepSpeed's engine and PyTorch, per group)."""
    return load_rows("optimizers", OptimizerRow)


def optimizer_row(name: str) -> OptimizerRow | None:
    """The optimizer of a config's `type`; None for a name that neither DeepSpeed nor torch has.

    >>> optimizer_row("AdamW").cpu, optimizer_row("SGD").gpu, optimizer_row("sgd")
    ('cpu_adam', '', None)
    """
    rows = optimizer_rows()
    return next((r for r in rows if r.type == (name if r.torch else name.lower())), None)
