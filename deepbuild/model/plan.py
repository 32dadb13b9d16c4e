"""What is asked for, and what was decided."""

from __future__ import annotations

import msgspec

PLAN_SCHEMA = 2


class Request(msgspec.Struct, frozen=True):
    """What the user asked for; empty means "decide for me"."""

    purpose: str = "wheel"
    """"wheel" (runs elsewhere) or "install" (runs here): decides the default CPU level."""
    ops: tuple[str, ...] = ("auto",)
    arches: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    cpu: str = ""
    cuda_home: str = ""
    toolkit: str = ""
    """A CUDA version ("13.0") that must be used, "" for the best that fits."""
    allow_cuda_mismatch: bool = False
    cxx: str = ""
    jobs: int = 0
    memory: int = 0
    allow_missing: tuple[str, ...] = ()
    debug_info: bool = False


class Rejected(msgspec.Struct, frozen=True):
    value: str
    reason: str


class Decision(msgspec.Struct, frozen=True):
    """One choice: what, why, on which evidence, and what else there was."""

    topic: str
    value: str
    reason: str
    evidence: str = ""
    rejected: tuple[Rejected, ...] = ()


class Blocker(msgspec.Struct, frozen=True):
    """Something that must change before the build can work, and the command that changes it."""

    code: str
    found: str
    wanted: str
    fix: str


class EnvVar(msgspec.Struct, frozen=True):
    value: str
    reason: str


class PlannedOp(msgspec.Struct, frozen=True):
    """`verdict` is "build", "skip" or "blocked"; `arches` are those that its device code gets."""

    name: str
    build_var: str
    verdict: str
    reason: str
    module: str = ""
    sources: tuple[str, ...] = ()
    arches: tuple[str, ...] = ()
    requested: bool = False

    @property
    def device_code(self) -> bool:
        return any(source.endswith(".cu") for source in self.sources)


class PlannedSource(msgspec.Struct, frozen=True):
    """`spec` gets the same tree again, `digest` tells whether it is the same."""

    version: str
    origin: str
    digest: str
    spec: str


class PlannedPython(msgspec.Struct, frozen=True):
    executable: str
    version: str
    tag: str


class PlannedTorch(msgspec.Struct, frozen=True):
    version: str
    cuda: str | None
    root: str


class PlannedToolkit(msgspec.Struct, frozen=True):
    """`include` and `lib` are the folders that the overlay links together, first one wins."""

    version: str
    home: str
    via: str
    nvcc: str
    include: tuple[str, ...]
    lib: tuple[str, ...]


class PlannedCompiler(msgspec.Struct, frozen=True):
    family: str
    version: str
    cc: str
    cxx: str


class FlagPolicy(msgspec.Struct, frozen=True):
    """What the shim compilers change in the commands that DeepSpeed gives: `cpu_flags` replace
    every -march/-mcpu/-mtune, `simd` replaces DeepSpeed's own SIMD macro."""

    cpu_flags: tuple[str, ...]
    simd: str
    debug_info: bool


class BuildPlan(msgspec.Struct, frozen=True):
    """A complete build, decided: `build` reads nothing else. `{work}` in the value of a variable
    stands for the folder that the build works in, `extra` names links to make in its folder of
    that name; `memory` is the limit asked for in bytes, 0 for none. `id` is the hash of all the
    rest."""

    accelerator: str
    deepspeed: PlannedSource
    python: PlannedPython
    torch: PlannedTorch
    toolkit: PlannedToolkit | None
    compiler: PlannedCompiler | None
    arches: tuple[str, ...]
    cpu: str
    flags: FlagPolicy
    ops: tuple[PlannedOp, ...]
    env: dict[str, EnvVar]
    jobs: int
    memory: int
    decisions: tuple[Decision, ...]
    blockers: tuple[Blocker, ...]
    warnings: tuple[str, ...]
    allow_missing: tuple[str, ...]
    local_version: str
    wheel: str
    extra: dict[str, str] = {}
    id: str = ""
    schema: int = PLAN_SCHEMA

    def built_ops(self) -> tuple[PlannedOp, ...]:
        return tuple(op for op in self.ops if op.verdict == "build")
