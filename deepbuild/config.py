"""Which ops a DeepSpeed JSON config will ask for at run time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepbuild.errors import UsageError

# optimizer type -> op on the GPU, op with the optimizer state on the CPU
# (DeepSpeed runtime/engine.py, _configure_basic_optimizer)
_OPTIMIZERS = {
    "adam": ("fused_adam", "cpu_adam"),
    "adamw": ("fused_adam", "cpu_adam"),
    "adagrad": ("", "cpu_adagrad"),
    "lamb": ("fused_lamb", ""),
    "lion": ("fused_lion", "cpu_lion"),
    "muon": ("fused_adam", "cpu_adam"),  # for the parameters that Muon leaves to Adam
}


def ops_of_config(path: Path) -> tuple[str, ...]:
    """The ops that a config needs, for --config.

    Raises:
        UsageError: the file cannot be read, or is no JSON object.
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
    optimizer = _part(config, "optimizer")
    op = _OPTIMIZERS.get(str(optimizer.get("type", "")).lower(), ("", ""))[on_cpu]
    if op and not _part(optimizer, "params").get("torch_adam"):
        yield op
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


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}
