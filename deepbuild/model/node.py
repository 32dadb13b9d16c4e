"""What an installation depended on, at the time when it was verified."""

from __future__ import annotations

import msgspec

from deepbuild.model.machine import Cpu, Gpus

NODE_SCHEMA = 1


class NodeRecord(msgspec.Struct, frozen=True):
    """What `install` saw when every op of a wheel had passed; it lies in the dist-info, so that
    what changed since can be told. `name` is the machine's host name, `wheel` where the wheel was,
    `verified` the time (ISO 8601, UTC); `cuda` is torch's own, None for a torch without."""

    deepbuild: str
    deepspeed: str
    wheel: str
    ops: tuple[str, ...]
    verified: str
    name: str
    python: str
    torch: str
    cuda: str | None
    libc: str
    cpu: Cpu
    gpus: Gpus
    schema: int = NODE_SCHEMA
