"""Which CPU level: one setting drives the compiler's -march and DeepSpeed's own SIMD macro."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec

from deepbuild.errors import UsageError
from deepbuild.model import Decision, FlagPolicy, Machine, PlannedCompiler, Request
from deepbuild.probe.cpu import public_name

AVX = ("-D__AVX256__", "-D__AVX512__")
_WHEEL_DEFAULT = {"x86_64": "x86-64-v3"}


class CpuChoice(msgspec.Struct, frozen=True):
    level: str
    policy: FlagPolicy
    decision: Decision
    warnings: tuple[str, ...] = ()


def choose_cpu(machine: Machine, compiler: PlannedCompiler | None, request: Request) -> CpuChoice:
    """The CPU level and its flags.

    Raises:
        UsageError: a level that archspec does not know, or of another architecture.
    """
    level, reason = _level(machine, request)
    target = _target(level, machine.system.arch)
    target, flags, warnings = _flags(target, compiler)
    name = public_name(target.name)
    decision = Decision(
        "CPU level", name, reason, f"archspec; this CPU is {machine.cpu.name or 'unknown to it'}"
    )
    policy = FlagPolicy(flags, simd_macro(target), request.debug_info)
    return CpuChoice(name, policy, decision, (*warnings, *_too_new(target, machine)))


def _level(machine: Machine, request: Request) -> tuple[str, str]:
    here = machine.cpu.name or machine.system.arch
    if request.cpu == "native":
        return here, "native: this machine's own, asked for with --cpu"
    if request.cpu:
        return request.cpu, "asked for with --cpu"
    if request.purpose == "install":
        return here, "native: it is installed where it is built"
    default = _WHEEL_DEFAULT.get(machine.system.arch, machine.system.arch)
    return default, "a wheel runs on other machines: every server CPU of the last ten years has it"


def _target(level: str, arch: str) -> Any:
    import archspec.cpu

    targets = archspec.cpu.TARGETS
    mine = {public_name(name): t for name, t in targets.items() if str(t.family) == arch}
    found = mine.get(public_name(level.lower().replace("x86-64", "x86_64")))
    if found is not None:
        return found
    if arch not in targets:
        raise UsageError(
            f"CPU architecture {arch} is not known", found=arch, wanted="one that archspec knows"
        )
    near = difflib.get_close_matches(level, list(mine), 3)
    raise UsageError(
        f"--cpu {level} is not known",
        found=level,
        wanted=f"native, or a level of {arch}" + (f", such as {', '.join(near)}" if near else ""),
        hint="--cpu x86-64-v3 runs on every x86 server CPU since 2015" if arch == "x86_64" else "",
    )


def _flags(target: Any, compiler: PlannedCompiler | None) -> tuple[Any, tuple[str, ...], list[str]]:
    """A target, or the nearest ancestor that this compiler knows, with its flags."""
    if compiler is None:
        return target, (), []
    for candidate in [target, *target.ancestors]:
        try:
            flags = candidate.optimization_flags(compiler.family, compiler.version)
        except Exception:
            continue
        if candidate is target:
            return target, tuple(flags.split()), []
        names = public_name(target.name), public_name(candidate.name)
        known = f"{compiler.family} {compiler.version} does not know {names[0]}"
        return candidate, tuple(flags.split()), [f"{known}: built for {names[1]}."]
    return (
        target,
        (),
        [f"{compiler.family} {compiler.version} has no flag for {target.name}: its default."],
    )


def simd_macro(target: Any) -> str:
    """DeepSpeed's own macro for a level (csrc/includes/simd.h, sve.h). NEON is part of every
    aarch64; POWER and others have no code of their own."""
    if str(target.family) == "aarch64":
        return "-D__SVE__" if "sve" in target else "-D__NEON__"
    if str(target.family) != "x86_64":
        return "-D__SCALAR__"
    if "avx512f" in target:
        return "-D__AVX512__"
    return "-D__AVX256__" if "avx2" in target else "-D__SCALAR__"


def _too_new(target: Any, machine: Machine) -> list[str]:
    if runs_code_for(machine.cpu.name, target.name) is not False:
        return []
    return [
        f"this CPU ({machine.cpu.name}) cannot run {public_name(target.name)} code: "
        "CPU ops cannot be verified here."
    ]


def runs_code_for(here: str, level: str) -> bool | None:
    """Whether a CPU runs code that is made for a level, or for another CPU; None where archspec
    does not know the two.

    >>> runs_code_for("haswell", "x86-64-v3"), runs_code_for("haswell", "x86-64-v4")
    (True, False)
    >>> runs_code_for("no-such-cpu", "x86-64-v3")
    """
    import archspec.cpu

    cpu, target = (archspec.cpu.TARGETS.get(_archspec_name(name)) for name in (here, level))
    if cpu is None or target is None:
        return None
    if cpu == target or target in cpu.ancestors:
        return True
    return bool(target.features) and all(feature in cpu for feature in target.features)


def _archspec_name(name: str) -> str:
    return name.replace("x86-64", "x86_64").replace("-v", "_v")
