"""Which ops a DeepSpeed JSON config will ask for at run time."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepbuild import facts
from deepbuild.errors import UsageError


def ops_of_config(path: Path) -> tuple[str, ...]:
    """The ops that a config needs, for --config.

    Raises:
        UsageError: the file cannot be read, is no JSON object, or names an unknown optimizer.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, getattr(error, "strerror", None) or str(error)) from None
    if not isinstance(config, dict):
        raise _unreadable(path, f"a JSON {type(config).__name__}")
    return tuple(dict.fromkeys(needed_ops(config)))


def _unreadable(path: Path, found: str) -> UsageError:
    return UsageError(
        f"{path} is not a DeepSpeed config",
        found=found,
        wanted="a JSON object, as deepspeed.initialize(config=...) takes it",
    )


def needed_ops(config: Mapping[str, Any]) -> Iterator[str]:
    """
    >>> list(needed_ops({"optimizer": {"type": "AdamW"}}))
    ['utils', 'fused_adam']
    """
    yield "utils"  # flattens for ZeRO in older releases, casts for checkpoints in newer ones
    zero = _part(config, "zero_optimization")
    parts = [_part(zero, name) for name in ("offload_optimizer", "offload_param")]
    offloads = [str(part.get("device")) for part in parts]
    on_cpu = offloads[0] in {"cpu", "nvme"} or bool(zero.get("cpu_offload"))
    yield from _optimizer_op(_part(config, "optimizer"), on_cpu=on_cpu)
    if "nvme" in offloads or "aio" in config:
        yield "async_io"
    if zero.get("zero_quantized_weights") or zero.get("zero_quantized_gradients"):
        yield "quantizer"
    if _part(config, "compile").get("deepcompile"):
        yield "dc"
    routing = _part(_part(config, "data_efficiency"), "data_routing")
    if _part(routing, "random_ltd").get("enabled"):
        yield "random_ltd"
    if "sparse_attention" in config:
        yield "sparse_attn"


def _optimizer_op(optimizer: Mapping[str, Any], *, on_cpu: bool) -> Iterator[str]:
    name = optimizer.get("type")
    if not isinstance(name, str):
        return
    row = facts.optimizer_row(name)
    if row is None:
        raise _unknown_optimizer(name)
    op = row.cpu if on_cpu else row.gpu
    if op and not _part(optimizer, "params").get("torch_adam"):
        yield op


def _unknown_optimizer(name: str) -> UsageError:
    known = {row.type.lower(): row.type for row in facts.optimizer_rows()}
    near = difflib.get_close_matches(name.lower(), known, 1)
    return UsageError(
        f"{name} is no optimizer that DeepSpeed knows",
        found=f'"type": "{name}" in the part "optimizer" of the config',
        wanted="one of DeepSpeed's own, or of torch.optim as it is written there",
        hint=f"did you mean {known[near[0]]}?" if near else "name the ops yourself: --ops LIST",
    )


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}
