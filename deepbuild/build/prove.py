"""A finished wheel against its plan: nothing that fails here reaches the output folder."""

from __future__ import annotations

from pathlib import Path

from packaging.utils import canonicalize_version
from packaging.version import Version

from deepbuild.errors import VerificationError
from deepbuild.model import BuildPlan, BuiltOp
from deepbuild.wheel.contents import Contents, read_contents, read_ops
from deepbuild.wheel.platform import platform_tag
from deepbuild.wheel.seal import retagged


def prove(path: Path, plan: BuildPlan, failed: tuple[str, ...]) -> tuple[BuiltOp, ...]:
    """Compare a wheel with its plan.

    Args:
        failed: the ops that are known not to be in it.

    Returns:
        The ops in it, as read back.

    Raises:
        VerificationError: all that differs, at once.
    """
    contents = read_contents(path)
    expected = {op.name: op.module for op in plan.built_ops() if op.name not in failed}
    ops = read_ops(path, expected)
    version = full_version(plan, failed)
    wrong = [
        *_names(path, plan, version),
        *_claims(contents, plan, version, set(expected)),
        *_libraries(ops, plan, set(expected)),
    ]
    if wrong:
        raise VerificationError(
            f"the wheel is not what was planned ({path})",
            found="\n".join(wrong),
            wanted=f"plan {plan.id}: {', '.join(expected)} for {plan.accelerator}",
            hint="this is a defect of deepbuild or of that DeepSpeed release: please report it",
        )
    return ops


def without(op: str) -> str:
    """What the version of a wheel gains where an op that was planned is not in it.

    >>> without("fused_adam")
    '.nofusedadam'
    """
    return ".no" + "".join(char for char in op.lower() if char.isalnum())


def full_version(plan: BuildPlan, failed: tuple[str, ...]) -> str:
    """The version of a plan's wheel; one that lacks ops has a name of its own."""
    lacking = "".join(without(op) for op in sorted(failed))
    return f"{Version(plan.deepspeed.version).public}+{plan.local_version}{lacking}"


def _names(path: Path, plan: BuildPlan, version: str) -> list[str]:
    wanted = f"deepspeed-{version}-{plan.wheel.split('-', 2)[2]}"
    honest = retagged(wanted, platform_tag(path.name))
    return [] if path.name == honest else [f"named {path.name}, not {wanted}"]


def _claims(contents: Contents, plan: BuildPlan, version: str, expected: set[str]) -> list[str]:
    wrong = []
    if canonicalize_version(contents.version) != canonicalize_version(version):
        wrong.append(f"version {contents.version}, not {version}")
    if contents.accelerator != plan.accelerator:
        wrong.append(f"recorded for accelerator {contents.accelerator!r}, not {plan.accelerator!r}")
    if set(contents.installed_ops) != expected:
        wrong.append(f"installed_ops says {', '.join(contents.installed_ops) or 'none'}")
    if not any(line.replace(" ", "") == torch_pin(plan) for line in contents.requires):
        wrong.append(f"does not require {torch_pin(plan)}")
    return wrong


def _libraries(ops: tuple[BuiltOp, ...], plan: BuildPlan, expected: set[str]) -> list[str]:
    missing = expected - {op.name for op in ops}
    wrong = [f"{name}: no library in it" for name in sorted(missing)]
    planned = {op.name: op.arches for op in plan.built_ops()}
    for op in ops:
        for kind, code in (("SASS", op.sass), ("PTX", op.ptx)):
            lacking = [arch for arch in _wanted(planned[op.name], kind) if arch not in code]
            if lacking:
                wrong.append(f"{op.name}: no {kind} for {', '.join(lacking)}")
    return wrong


def _wanted(arches: tuple[str, ...], kind: str) -> list[str]:
    return [arch.removesuffix("+PTX") for arch in arches if kind == "SASS" or arch.endswith("+PTX")]


def torch_pin(plan: BuildPlan) -> str:
    """The requirement that keeps a wheel with the torch minor that it was built for."""
    release = Version(plan.torch.version).release
    return f"torch=={release[0]}.{release[1]}.*"
