"""What a maintainer asks for, in one paste: versions, machine, plan, what the log tells, config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from deepbuild import __version__
from deepbuild.errors import DeepbuildError, UsageError
from deepbuild.host import Host
from deepbuild.masking import masked
from deepbuild.model import BuildPlan, Explanation, Machine

# What takes part where DeepSpeed fails, by the names of the projects.
_PACKAGES = (
    *("torch", "deepspeed", "transformers", "accelerate", "peft", "triton", "lightning", "trl"),
    *(
        "pytorch-lightning",
        "flash-attn",
        "deepspeed-kernels",
        "nvidia-cutlass",
        "ninja",
        "pydantic",
    ),
    *("numpy", "ninja", "setuptools", "pip", "py-cpuinfo"),
)
_MOST_CONFIG = 2**18


class Gathered(msgspec.Struct, frozen=True):
    """`plan` is what would be built, or why there is no plan; `log` what a log tells; `config` a
    DeepSpeed config."""

    host: Host
    machine: Machine
    plan: BuildPlan | str
    log: Explanation | None = None
    config: Path | None = None

    def text(self, secrets: Iterable[tuple[str, str]]) -> str:
        """Markdown, without anything secret.

        Raises:
            UsageError: the config cannot be read.
        """
        plan = self.plan if isinstance(self.plan, str) else "\n".join(_plan(self.plan))
        parts = [
            ("Versions", "\n".join(_versions(self.host, self.machine))),
            ("Machine", "\n".join(_machine(self.machine))),
            ("Plan", plan),
        ]
        if self.log:
            told = "\n".join(_log(self.log))
            parts.append((f"What the log tells ({self.log.verdict})", told))
        if self.config:
            parts.append(("DeepSpeed config", _text(self.config)))
        told = "\n\n".join(f"### {title}\n\n```\n{body}\n```" for title, body in parts)
        return masked(told, secrets) + "\n"


def _versions(host: Host, machine: Machine) -> Iterator[str]:
    yield f"deepbuild {__version__}"
    python = machine.python
    if python is None:
        yield "no Python"
        return
    yield f"Python {python.version} ({python.kind}), {python.executable}"
    there = dict(_distributions(host, python.site_packages))
    for name in _PACKAGES:
        if name in there:
            yield f"{name} {there[name]}"
    if machine.torch:
        cuda = machine.torch.cuda or machine.torch.hip or "none"
        yield f"torch's CUDA {cuda}, torch in {machine.torch.root}"


def _distributions(host: Host, folder: str) -> Iterator[tuple[str, str]]:
    for entry in host.list_dir(folder):
        if entry.endswith(".dist-info"):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            yield name.lower().replace("_", "-"), version


def _machine(machine: Machine) -> Iterator[str]:
    system, here = machine.system, machine.resources
    yield f"{system.name}, {system.arch}, {system.libc}"
    yield f"CPU {machine.cpu.name}, {here.cores} cores ({here.cores_from})"
    yield f"memory {here.memory / 2**30:.1f} GiB ({here.memory_from})"
    yield f"disk {here.disk_free / 2**30:.1f} GiB free"
    gpus = machine.gpus
    for gpu in gpus.devices:
        yield f"GPU {gpu.name}, capability {gpu.capability or 'unknown'}"
    yield f"driver {gpus.driver or 'none'} (CUDA {gpus.driver_cuda or 'unknown'})"
    for kit in machine.toolkits:
        lacks = f", lacks {', '.join(kit.missing)}" if kit.missing else ""
        yield f"CUDA {kit.version} at {kit.home}{lacks}"
    for each in machine.compilers:
        state = f" ({each.broken})" if each.broken else ""
        yield f"{each.family} {each.version} at {each.cxx}{state}"
    for problem in machine.problems:
        yield f"not usable: {problem.subject}: {problem.found}"
    for finding in machine.shell:
        if not finding.ok:
            yield f"shell: {finding.subject}: {finding.found}"


def _plan(plan: BuildPlan) -> Iterator[str]:
    yield f"plan {plan.id}: {plan.wheel}"
    for decision in plan.decisions:
        yield f"{decision.topic}: {decision.value}  {decision.reason}"
    for op in plan.ops:
        yield f"op {op.name}: {op.verdict}  {op.reason}"
    for warning in plan.warnings:
        yield f"mind: {warning}"
    for blocker in plan.blockers:
        yield f"blocked by {blocker.code}: {blocker.found}"


def _log(found: Explanation) -> Iterator[str]:
    for cause in found.causes:
        yield f"{cause.code} {cause.title} ({cause.sure}), {cause.times} times"
        yield from (f"  line {told.line}: {told.text}" for told in cause.evidence)
    for told in found.candidates:
        yield f"line {told.line}: {told.text}"
    for noise in found.noise:
        yield f"only follows: line {noise.last.line}: {noise.last.text}"


def _text(config: Path) -> str:
    try:
        with config.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_CONFIG)
    except OSError as error:
        raise UsageError(
            f"{config} cannot be read",
            found=error.strerror or str(error),
            wanted="a DeepSpeed config",
        ) from None


def words_of(error: DeepbuildError) -> str:
    """An error, where there is no plan because of it."""
    return f"no plan: {error}"
