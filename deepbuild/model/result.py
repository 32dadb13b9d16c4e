"""What came out, as read back from it."""

from __future__ import annotations

import msgspec

from deepbuild.model.choice import Choice
from deepbuild.model.plan import BuildPlan

WHEEL_SCHEMA = 2
MANIFEST_SCHEMA = 1
VERIFICATION_SCHEMA = 1


class BuiltOp(msgspec.Struct, frozen=True):
    """One op's library in a wheel, as read back out of it. `sass` and `ptx` are capabilities, `cpu`
    is the psABI level of its host code ("" where that is not known) and `cpu_beyond` the features
    that no level has; `needed` are the libraries that it names, `versions` the newest symbol
    versions that it wants of the system's ("GLIBC": "2.34")."""

    name: str
    library: str
    size: int
    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()
    module: str = ""
    sha256: str = ""
    cpu: str = ""
    cpu_beyond: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    versions: dict[str, str] = {}


class Compiled(msgspec.Struct, frozen=True):
    """Files of an op that were compiled alike: the compiler's role and its options, in which paths
    of the machine have been replaced by names."""

    role: str
    flags: tuple[str, ...]
    sources: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True):
    """What a wheel says of itself, in its dist-info; each claim can be read back out of it.

    `plan` lacks what is of the machine only: paths, limits, evidence. `providers` tells for each
    library that ops need whose it is: "system", "torch", "driver", or "other" (what this machine
    has, and another may not). `not_reproducible` says why another build could give other bytes,
    "" if it would give the same."""

    deepbuild: str
    plan: BuildPlan
    platform: str
    platform_reason: str
    ops: tuple[BuiltOp, ...]
    missing: tuple[str, ...]
    compiled: dict[str, tuple[Compiled, ...]]
    providers: dict[str, str]
    not_reproducible: str = ""
    schema: int = MANIFEST_SCHEMA


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
    """`status` is "passed", "failed" or "skipped"; a skipped check says why. `to_do` is the command
    that helps, where one does."""

    name: str
    status: str
    evidence: str
    to_do: str = ""


class Verification(msgspec.Struct, frozen=True):
    """What was proved of an installation, in a fresh child process per op. `choice` tells how its
    wheel was chosen, where that was left to deepbuild."""

    python: str
    wheel: str
    checks: tuple[Check, ...] = ()
    choice: Choice | None = None
    schema: int = VERIFICATION_SCHEMA

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.status != "failed" for check in self.checks)
