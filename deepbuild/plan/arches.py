"""Which GPU architectures: asked for, or the GPUs found, or torch's own list; never one that nvcc
refuses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import Version

from deepbuild import facts
from deepbuild.errors import UsageError
from deepbuild.model import Blocker, Decision, Machine, Rejected, Request, Toolkit, Torch
from deepbuild.plan.gpus import (
    capability,
    gpu_capability,
    number,
    unserved_gpus,
    visible_gpus,
    why_no_gpu,
)

_ARCH = re.compile(r"^([0-9]{1,2}\.[0-9])([af]?)(\+PTX)?$", re.IGNORECASE)
_BF16 = Version("8.0")
_TEGRA = {"5.3", "6.2", "7.2", "8.7", "10.1", "11.0"}  # Jetson boards: never what a card wants
_SUFFIX_BREAKS_FROM = Version("0.19.1")  # builder.py reads the minor number with int()


@dataclass(frozen=True)
class ArchChoice:
    arches: tuple[str, ...]
    decision: Decision
    blockers: tuple[Blocker, ...] = ()
    warnings: tuple[str, ...] = ()


def choose_arches(
    machine: Machine, torch: Torch, toolkit: Toolkit | None, request: Request, release: str
) -> ArchChoice:
    """The TORCH_CUDA_ARCH_LIST.

    Raises:
        UsageError: an arch that is none, or a GPU name that is not known.
    """
    wanted, reason, evidence = _wanted(machine, torch, request)
    kept = tuple(arch for arch in wanted if _accepts(toolkit, arch))
    refused = [arch for arch in wanted if arch not in kept]
    rejected = tuple(Rejected(arch, _refused_by(toolkit, arch)) for arch in refused)
    kept, suffix_warnings = _without_suffix(kept, release)
    explicit = bool(request.arches or request.gpus)
    blockers = tuple(_blocker(toolkit, arch) for arch in refused) if explicit else ()
    if not kept and not blockers:
        blockers = (_nothing_left(toolkit, wanted, evidence),)
    value = ";".join(kept) or "none"
    warnings = [*suffix_warnings, *_bf16_warning(kept), *_torch_warning(kept, torch)]
    if kept and not explicit:
        warnings += unserved_gpus(machine, kept)
    decision = Decision("arches", value, reason, evidence, rejected)
    return ArchChoice(kept, decision, blockers, tuple(warnings))


def _wanted(machine: Machine, torch: Torch, request: Request) -> tuple[tuple[str, ...], str, str]:
    if request.arches:
        return sort_arches(parse_arches(request.arches)), "asked for with --arch", "--arch"
    if request.gpus:
        named = [capability(name) for name in request.gpus]
        pairs = ", ".join(f"{name} = {cc}" for name, cc in zip(request.gpus, named, strict=True))
        return sort_arches(named), f"the GPUs asked for: {pairs}", "--gpu, NVIDIA's capability list"
    found = sort_arches([cc for gpu in visible_gpus(machine) if (cc := gpu_capability(gpu))])
    if found:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in visible_gpus(machine)))
        return found, f"the GPUs of this machine: {names}", machine.gpus.answered_by
    own = sort_arches([number(arch) for arch in torch.arches])
    return own, f"{why_no_gpu(machine)}: all that torch itself runs on", "torch's arch flags"


def parse_arches(words: tuple[str, ...]) -> list[str]:
    """Read an arch list as torch would.

    >>> parse_arches(("8.0;9.0+ptx", "12.0a"))
    ['8.0', '9.0+PTX', '12.0a']

    Raises:
        UsageError: a word that is no compute capability.
    """
    arches = []
    for word in re.split(r"[;,\s]+", " ".join(words).strip()):
        match = _ARCH.match(word)
        if not match:
            raise UsageError(
                f"--arch {word or '(empty)'} is no compute capability",
                found=repr(word),
                wanted='numbers such as "8.0;9.0+PTX"',
                hint="or name the GPUs: --gpu a100,h100",
            )
        base, suffix, ptx = match.groups()
        arches.append(base + suffix.lower() + ("+PTX" if ptx else ""))
    return arches


def sort_arches(arches: list[str]) -> tuple[str, ...]:
    """Each once, in the order of their numbers; +PTX wins over the same arch without it.

    >>> sort_arches(["10.0", "8.6", "8.6+PTX"])
    ('8.6+PTX', '10.0')
    """
    ptx = {arch.removesuffix("+PTX") for arch in arches if arch.endswith("+PTX")}
    bases = {arch.removesuffix("+PTX") for arch in arches}
    ordered = sorted(bases, key=lambda arch: (Version(number(arch)), arch))
    return tuple(arch + ("+PTX" if arch in ptx else "") for arch in ordered)


def _known_to(toolkit: Toolkit | None) -> frozenset[str]:
    """What nvcc accepts; empty for "nobody says"."""
    if toolkit is None:
        return frozenset()
    row = facts.nvcc_archs(toolkit.version)
    return frozenset(toolkit.arches or (row.archs if row else ()))


def _accepts(toolkit: Toolkit | None, arch: str) -> bool:
    """Whether nvcc takes an arch; what nobody says is not refused. `a` and `f` forms are in no
    answer of nvcc, only in the table."""
    known = _known_to(toolkit)
    if not known or toolkit is None:
        return True
    bare = arch.removesuffix("+PTX")
    row = facts.nvcc_archs(toolkit.version)
    suffix_known = bare[-1] not in "af" or row is None or bare in row.suffixed
    return number(arch) in known and suffix_known


def _refused_by(toolkit: Toolkit | None, arch: str) -> str:
    version = toolkit.version if toolkit else "?"
    known = sorted(_known_to(toolkit), key=Version)
    if known and _is_older(arch, known):
        return f"nvcc {version} no longer builds for it (from {known[0]} on)"
    return f"nvcc {version} does not know it (it knows {', '.join(known)})"


def _is_older(arch: str, known: list[str]) -> bool:
    return Version(number(arch)) < Version(known[0])


def _way_out(toolkit: Toolkit | None, arch: str) -> str:
    """What helps where nvcc refuses an arch: it depends on which of the two is the older."""
    known = sorted(_known_to(toolkit), key=Version)
    if known and _is_older(arch, known):
        return "an older CUDA toolkit, and a torch for it"
    wanted = Version(number(arch))
    near = [cc for cc in known if Version(cc) <= wanted and cc not in _TEGRA]
    if not near:
        return "a newer CUDA toolkit, and a torch for it"
    same = Version(near[-1]).major == wanted.major
    use = near[-1] if same else f"{near[-1]}+PTX"
    how = "its code runs there" if same else "compiled there at first use"
    return f'--arch "{use}" ({how}), or a newer CUDA toolkit, and a torch for it'


def _blocker(toolkit: Toolkit | None, arch: str) -> Blocker:
    refused = f"{arch}: {_refused_by(toolkit, arch)}"
    return Blocker("ARCH_REFUSED", refused, "arches that nvcc builds for", _way_out(toolkit, arch))


def _nothing_left(toolkit: Toolkit | None, wanted: tuple[str, ...], evidence: str) -> Blocker:
    known = ", ".join(sorted(_known_to(toolkit), key=Version))
    found = "no GPU here, and torch names no arch"
    fix = 'name them: --arch "8.0;9.0" or --gpu a100,h100'
    if wanted:
        found = f"{', '.join(wanted)} (from {evidence}): {_refused_by(toolkit, wanted[-1])}"
        fix = f"{_way_out(toolkit, wanted[-1])};\nfor other GPUs, {fix}"
    least = f"at least one arch that nvcc builds for ({known})" if known else "at least one arch"
    return Blocker("NO_ARCH", found, least, fix)


def _without_suffix(arches: tuple[str, ...], release: str) -> tuple[tuple[str, ...], list[str]]:
    suffixed = [arch for arch in arches if re.search(r"[af](\+PTX)?$", arch)]
    if not suffixed or Version(Version(release).base_version) < _SUFFIX_BREAKS_FROM:
        return arches, []
    plain = [number(arch) + ("+PTX" if arch.endswith("+PTX") else "") for arch in arches]
    names = ", ".join(suffixed)
    return sort_arches(plain), [
        f"{names}: built without the suffix, since DeepSpeed {release} cannot read it."
    ]


def _bf16_warning(arches: tuple[str, ...]) -> list[str]:
    old = [arch for arch in arches if Version(number(arch)) < _BF16]
    if not old or len(old) == len(arches):
        return []
    return [
        f"{', '.join(old)} in the list switches BF16 kernels off for every arch: "
        "build a wheel of its own for these GPUs."
    ]


def _torch_warning(arches: tuple[str, ...], torch: Torch) -> list[str]:
    own = {number(arch) for arch in torch.arches}
    majors = {Version(arch).major for arch in own}
    strange = [arch for arch in arches if own and Version(number(arch)).major not in majors]
    if not strange:
        return []
    return [f"torch {torch.version} itself has no kernels for {', '.join(strange)}."]
