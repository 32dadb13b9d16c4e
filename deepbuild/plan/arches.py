"""Which GPU architectures: asked for, or the GPUs found, or torch's own list; never one that nvcc
refuses."""

from __future__ import annotations

import re

import msgspec
from packaging.version import Version

from deepbuild import facts
from deepbuild.errors import UsageError
from deepbuild.model import Blocker, Decision, Machine, Rejected, Request, Toolkit, Torch
from deepbuild.plan.gpus import (
    capability,
    gpu_capability,
    number,
    runs_on,
    unserved_gpus,
    visible_gpus,
    why_no_gpu,
)

_ARCH = re.compile(r"^([0-9]{1,2}\.[0-9])([af]?)(\+PTX)?$", re.IGNORECASE)
_BF16 = Version("8.0")
_TEGRA = {"5.3", "6.2", "7.2", "8.7", "10.1", "11.0"}  # Jetson boards: never what a card wants
_OF_GPUS = {"--gpu", "GPUs"}
_ASKED_FOR = {"--arch", "--gpu"}
_TWO_DIGITS_FROM = Version("0.16.4")  # before, builder.py took the first and third character
_SUFFIX_BREAKS_FROM = Version("0.19.1")  # builder.py reads the minor number with int()


class ArchChoice(msgspec.Struct, frozen=True):
    arches: tuple[str, ...]
    decision: Decision
    blockers: tuple[Blocker, ...] = ()
    warnings: tuple[str, ...] = ()


class _Wanted(msgspec.Struct, frozen=True):
    """What arches are wanted before anything is refused, and who said so."""

    arches: tuple[str, ...]
    reason: str
    evidence: str
    said_by: str
    """"--arch", "--gpu", "GPUs" or "torch"."""


class _Around(msgspec.Struct, frozen=True):
    machine: Machine
    torch: Torch
    toolkit: Toolkit | None
    release: str


def choose_arches(
    machine: Machine, torch: Torch, toolkit: Toolkit | None, request: Request, release: str
) -> ArchChoice:
    """The TORCH_CUDA_ARCH_LIST: what is wanted, less what nvcc, this DeepSpeed or torch cannot.

    A GPU that is too new for nvcc gets the newest code that it runs instead. What was asked for
    by number and is refused is a blocker.

    Raises:
        UsageError: an arch that is none, or a GPU name that is not known.
    """
    around = _Around(machine, torch, toolkit, release)
    wanted = _wanted(machine, torch, request)
    fates = [_fate(arch, around, wanted) for arch in wanted.arches]
    built = sort_arches([fate.built for fate in fates if fate.built])
    arches, suffix_warnings = _without_suffix(built, release)
    blockers = [fate.blocker for fate in fates if fate.blocker]
    if wanted.said_by == "GPUs" and arches:  # one card does not stop the others
        blockers = []
    if not arches and not blockers:
        blockers.append(_nothing_left(around, wanted))
    warnings = [*suffix_warnings, *_bf16_warning(arches), *_torch_warning(arches, torch)]
    if arches and (wanted.said_by not in _ASKED_FOR or request.purpose == "install"):
        warnings += unserved_gpus(machine, arches)
    value = ";".join(arches) or "none"
    rejected = tuple(Rejected(fate.wanted, fate.reason) for fate in fates if fate.reason)
    decision = Decision("arches", value, wanted.reason, wanted.evidence, rejected)
    return ArchChoice(arches, decision, tuple(blockers), tuple(warnings))


class _Fate(msgspec.Struct, frozen=True):
    """What becomes of a wanted arch: `built` is itself, or what is built instead, or ""."""

    wanted: str
    built: str
    reason: str = ""
    blocker: Blocker | None = None


def _fate(arch: str, around: _Around, wanted: _Wanted) -> _Fate:
    of_gpus = wanted.said_by in _OF_GPUS
    refusal = _refusal(arch, around)
    instead = _instead(arch, around) if of_gpus and refusal else ""
    if of_gpus and (instead or not refusal) and not runs_torch(around.torch, arch):
        return _without_torch(arch, around.torch)
    if not refusal:
        return _Fate(arch, arch)
    if instead:
        return _Fate(arch, instead, f"{refusal}; its GPUs run {instead}, which is built")
    asked_for = wanted.said_by in _ASKED_FOR
    return _Fate(arch, "", refusal, _blocker(around, arch, refusal) if asked_for else None)


def _without_torch(arch: str, torch: Torch) -> _Fate:
    """GPUs on which torch itself cannot run need another torch first: no build of DeepSpeed helps.
    Arches given by number are the user's own business (there is a warning)."""
    reason = f"torch {torch.version} has no kernels for it (it has {' '.join(torch.arches)})"
    first = facts.first_cuda_for(number(arch))
    needed = f"a torch that runs on {arch}" + (f": one for CUDA {first} or newer" if first else "")
    fix = f"install {_newer_torch(first)} first; no build of DeepSpeed can help"
    if _is_older(arch, sorted(map(number, torch.arches), key=Version)):
        fix = f"install an older torch first: {_older_cuda(arch)}"
    return _Fate(arch, "", reason, Blocker("TORCH_ARCH", f"{arch}: {reason}", needed, fix))


def runs_torch(torch: Torch, arch: str) -> bool:
    """Whether torch's own device code runs where an arch is meant for; True if nobody says."""
    return not torch.arches or any(runs_on(own, number(arch)) for own in torch.arches)


def _torch_first(arch: str, reason: str) -> Blocker:
    first = facts.first_cuda_for(number(arch))
    wanted = f"a torch that runs on {arch}" + (f": one for CUDA {first} or newer" if first else "")
    fix = "install a newer torch first, or one for a newer CUDA; no build of DeepSpeed can help"
    return Blocker("TORCH_ARCH", f"{arch}: {reason}", wanted, fix)


def _newer_torch(cuda: str | None) -> str:
    """The oldest torch that has a variant for a CUDA or a newer one."""
    for row in facts.torch_rows():
        fitting = [v for v in row.cuda_variants if cuda and Version(v) >= Version(cuda)]
        if fitting:
            return f"torch {row.torch} or newer, for CUDA {fitting[0]} or newer"
    return "a newer torch, or one for a newer CUDA"


def _refusal(arch: str, around: _Around) -> str:
    """Why an arch cannot be built, "" if it can."""
    unread = Version(Version(around.release).base_version) < _TWO_DIGITS_FROM
    if unread and Version(number(arch)).major >= 10:
        return (
            f"DeepSpeed {around.release} reads it as {arch[:1]}.: releases from 0.16.4 on know it"
        )
    return "" if _accepts(around.toolkit, arch) else _refused_by(around.toolkit, arch)


def _instead(arch: str, around: _Around) -> str:
    """What is built for a GPU that is too new for nvcc, "" if nothing that this DeepSpeed reads."""
    nearest = _nearest(around.toolkit, arch)
    return nearest if nearest and not _refusal(nearest, around) else ""


def _nearest(toolkit: Toolkit | None, arch: str) -> str:
    """The newest code that runs on a GPU which is too new for nvcc: SASS of its own major version,
    else PTX, which the driver compiles; "" if nvcc knows nothing older."""
    wanted = Version(number(arch))
    known = sorted(_known_to(toolkit), key=Version)
    if number(arch) in known and number(arch) != arch.removesuffix(
        "+PTX"
    ):  # only its suffix is not
        return number(arch)
    older = [k for k in known if Version(k) < wanted and k not in _TEGRA]
    if not older:
        return ""
    return older[-1] if Version(older[-1]).major == wanted.major else f"{older[-1]}+PTX"


def _wanted(machine: Machine, torch: Torch, request: Request) -> _Wanted:
    if request.arches:
        arches = sort_arches(parse_arches(request.arches))
        return _Wanted(arches, "asked for with --arch", "--arch", "--arch")
    if request.gpus:
        named = [capability(name) for name in request.gpus]
        pairs = ", ".join(f"{name} = {cc}" for name, cc in zip(request.gpus, named, strict=True))
        reason, evidence = f"the GPUs asked for: {pairs}", "--gpu, NVIDIA's capability list"
        return _Wanted(sort_arches(named), reason, evidence, "--gpu")
    found = sort_arches([cc for gpu in visible_gpus(machine) if (cc := gpu_capability(gpu))])
    if found:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in visible_gpus(machine)))
        reason = f"the GPUs of this machine: {names}"
        return _Wanted(found, reason, machine.gpus.answered_by, "GPUs")
    own = sort_arches([number(arch) for arch in torch.arches])
    reason = f"{why_no_gpu(machine)}: all that torch itself runs on"
    return _Wanted(own, reason, "torch's arch flags", "torch")


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
        return _older_cuda(arch)
    nearest = _nearest(toolkit, arch)
    if not nearest:
        return "a newer CUDA toolkit, and a torch for it"
    how = "compiled there at first use" if nearest.endswith("+PTX") else "its code runs there"
    return f'--arch "{nearest}" ({how}), or a newer CUDA toolkit, and a torch for it'


def _older_cuda(arch: str) -> str:
    """The newest CUDA that still builds for an arch, and the newest torch for one of its major
    version: the tables know both."""
    last = facts.last_cuda_for(number(arch))
    major = (last or "").partition(".")[0]
    rows = [row for row in facts.torch_rows() if _variant(row.cuda_variants, major)]
    if last is None or not rows:
        return "an older CUDA toolkit, and a torch for it"
    torch = f"torch {rows[-1].torch} for CUDA {_variant(rows[-1].cuda_variants, major)}"
    return f"an older CUDA toolkit (up to {last}), and a torch for it (up to {torch})"


def _variant(variants: tuple[str, ...], major: str) -> str:
    """The newest of a torch's CUDA variants of one major version, "" if there is none."""
    return next((v for v in reversed(variants) if v.partition(".")[0] == major), "")


def _blocker(around: _Around, arch: str, refusal: str) -> Blocker:
    found, wanted = f"{arch}: {refusal}", "arches that nvcc builds for"
    if _accepts(around.toolkit, arch):
        fix = "--deepspeed 0.16.4 or newer; or leave the arch out"
        return Blocker("ARCH_REFUSED", found, "a DeepSpeed that knows it", fix)
    fix = f"leave {arch} out, or use {_way_out(around.toolkit, arch)}"
    return Blocker("ARCH_REFUSED", found, wanted, fix)


def _nothing_left(around: _Around, wanted: _Wanted) -> Blocker:
    known = ", ".join(sorted(_known_to(around.toolkit), key=Version))
    found = "no GPU here, and torch names no arch"
    fix = 'name them: --arch "8.0;9.0" or --gpu a100,h100'
    if wanted.arches:
        last = wanted.arches[-1]
        found = f"{', '.join(wanted.arches)} (from {wanted.evidence}): {_refusal(last, around)}"
        own = _blocker(around, last, "").fix.removeprefix(f"leave {last} out, or use ")
        fix = f"{own};\nfor other GPUs, {fix}"
    least = f"at least one arch that nvcc builds for ({known})" if known else "at least one arch"
    return Blocker("NO_ARCH", found, least, fix)


def _without_suffix(arches: tuple[str, ...], release: str) -> tuple[tuple[str, ...], list[str]]:
    suffixed = [arch for arch in arches if re.search(r"[af](\+PTX)?$", arch)]
    number_of = Version(Version(release).base_version)
    if not suffixed or _TWO_DIGITS_FROM <= number_of < _SUFFIX_BREAKS_FROM:
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
    strange = [arch for arch in arches if not runs_torch(torch, arch)]
    if not strange:
        return []
    return [f"torch {torch.version} itself has no kernels for {', '.join(strange)}."]
