"""Which GPU architectures: asked for, or the GPUs found, or torch's own list; never one that nvcc
refuses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import Version

from deepbuild import facts
from deepbuild.errors import UsageError
from deepbuild.model import Blocker, Decision, Machine, Rejected, Request, Toolkit, Torch

_ARCH = re.compile(r"^(\d{1,2}\.\d)([af]?)(\+PTX)?$", re.IGNORECASE)
_BF16 = Version("8.0")
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
    known = _known_to(toolkit)
    kept = tuple(arch for arch in wanted if not known or number(arch) in known)
    refused = [arch for arch in wanted if arch not in kept]
    rejected = tuple(Rejected(arch, _refused_by(toolkit, arch)) for arch in refused)
    kept, suffix_warnings = _without_suffix(kept, release)
    explicit = bool(request.arches or request.gpus)
    blockers = tuple(_blocker(toolkit, arch) for arch in refused) if explicit else ()
    if not kept and not blockers:
        blockers = (_nothing_left(toolkit, wanted, evidence),)
    value = ";".join(kept) or "none"
    return ArchChoice(
        kept,
        Decision("arches", value, reason, evidence, rejected),
        blockers,
        (*suffix_warnings, *_bf16_warning(kept), *_torch_warning(kept, torch)),
    )


def _wanted(machine: Machine, torch: Torch, request: Request) -> tuple[tuple[str, ...], str, str]:
    if request.arches:
        return sort_arches(parse_arches(request.arches)), "asked for with --arch", "--arch"
    if request.gpus:
        named = [capability(name) for name in request.gpus]
        pairs = ", ".join(f"{name} = {cc}" for name, cc in zip(request.gpus, named, strict=True))
        return sort_arches(named), f"the GPUs asked for: {pairs}", "--gpu, NVIDIA's capability list"
    visible = [gpu for gpu in machine.gpus.devices if gpu.visible]
    found = [gpu.capability or facts.capability_of(gpu.name) or "" for gpu in visible]
    if any(found):
        names = ", ".join(dict.fromkeys(gpu.name for gpu in visible))
        return (
            sort_arches([cc for cc in found if cc]),
            f"the GPUs of this machine: {names}",
            machine.gpus.answered_by,
        )
    own = sort_arches([number(arch) for arch in torch.arches])
    return own, "no GPU here and none named: all that torch itself runs on", "torch's arch flags"


def capability(name: str) -> str:
    """The compute capability of a GPU by its name.

    Raises:
        UsageError: unknown or ambiguous; the nearest names are given.
    """
    found = facts.capability_of(name)
    if found:
        return found
    matches = facts.find_gpus(name)
    near = [f"{row.name} ({row.capability})" for row in matches] or facts.nearest_gpus(name)
    raise UsageError(
        f"--gpu {name} is {'ambiguous' if matches else 'not known'}",
        found=name,
        wanted="a GPU of NVIDIA's list" + (f", such as {', '.join(near[:4])}" if near else ""),
        hint='or give its compute capability: --arch "9.0"',
    )


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


def number(arch: str) -> str:
    """
    >>> number("9.0a+PTX")
    '9.0'
    """
    return arch.removesuffix("+PTX").rstrip("af")


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


def _refused_by(toolkit: Toolkit | None, arch: str) -> str:
    version = toolkit.version if toolkit else "?"
    known = sorted(_known_to(toolkit), key=Version)
    if known and Version(number(arch)) < Version(known[0]):
        return f"nvcc {version} no longer builds for it (from {known[0]} on)"
    return f"nvcc {version} does not know it (it knows {', '.join(known)})"


def _blocker(toolkit: Toolkit | None, arch: str) -> Blocker:
    known = sorted(_known_to(toolkit), key=Version)
    older = [cc for cc in known if Version(cc) < Version(number(arch))]
    fix = (
        f'--arch "{older[-1]}+PTX" runs there by PTX'
        if older
        else "an older CUDA toolkit and torch"
    )
    if older:
        fix += ", or a newer CUDA toolkit and torch"
    return Blocker(
        "ARCH_REFUSED", arch, f"an arch that is not refused: {_refused_by(toolkit, arch)}", fix
    )


def _nothing_left(toolkit: Toolkit | None, wanted: tuple[str, ...], evidence: str) -> Blocker:
    known = ", ".join(sorted(_known_to(toolkit), key=Version))
    found = "no GPU here, and torch names no arch"
    fix = 'name them: --arch "8.0;9.0" or --gpu a100,h100'
    if wanted:
        found = f"{', '.join(wanted)} (from {evidence}): {_refused_by(toolkit, wanted[0])}"
        fix = f"an older CUDA toolkit and torch for these; for other GPUs, {fix}"
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
