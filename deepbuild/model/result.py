"""What came out, as read back from it."""

from __future__ import annotations

import msgspec

WHEEL_SCHEMA = 1
VERIFICATION_SCHEMA = 1


class BuiltOp(msgspec.Struct, frozen=True):
    """One op's library in a wheel, as read back out of it. `sass` and `ptx` are capabilities."""

    name: str
    library: str
    size: int
    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()


class Wheel(msgspec.Struct, frozen=True):
    """A wheel whose content was compared with its plan."""

    path: str
    sha256: str
    size: int
    plan: str
    accelerator: str
    ops: tuple[BuiltOp, ...]
    missing: tuple[str, ...] = ()
    seconds: float = 0.0
    log: str = ""
    schema: int = WHEEL_SCHEMA


class Check(msgspec.Struct, frozen=True):
    """`status` is "passed", "failed" or "skipped"; a skipped check says why."""

    name: str
    status: str
    evidence: str


class Verification(msgspec.Struct, frozen=True):
    """What was proved of an installation, in a fresh child process per op."""

    python: str
    wheel: str
    checks: tuple[Check, ...] = ()
    schema: int = VERIFICATION_SCHEMA

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.status != "failed" for check in self.checks)
