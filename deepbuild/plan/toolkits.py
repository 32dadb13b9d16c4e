"""Which CUDA toolkit: an exact match first, then what can be made to work."""

from __future__ import annotations

import re

import msgspec
from packaging.version import Version

from deepbuild import facts
from deepbuild.model import (
    Blocker,
    Decision,
    Machine,
    NvidiaPackage,
    PlannedToolkit,
    Rejected,
    Request,
    Toolkit,
    Torch,
    replace,
    toolkit_home,
)
from deepbuild.plan import fixes

INSISTED = "another one is insisted on with --cuda-home"
_PROGRAMS = ("bin/ptxas", "bin/cudafe++", "bin/fatbinary", "nvvm/bin/cicc")
# Compilers look here by themselves. Linking /usr/include into a CUDA_HOME would put the plain C
# headers before the C++ library's own, which breaks <cmath> and others.
_SEARCHED_ANYWAY = re.compile(
    r"^(/usr(/local)?/include|/usr/lib(64)?(/[\w-]+-linux-gnu)?|/lib(64)?)$"
)
_THE_COMPILER = re.compile(r"unsupported (GNU|clang)|host compiler", re.I)


class ToolkitChoice(msgspec.Struct, frozen=True):
    toolkit: Toolkit | None
    planned: PlannedToolkit | None
    decision: Decision
    blockers: tuple[Blocker, ...] = ()
    warnings: tuple[str, ...] = ()
    other_major: bool = False
    """Whether torch's own check refuses it for ops with device code."""


def choose_toolkit(
    machine: Machine, torch: Torch, request: Request, without_compiler: frozenset[str] = frozenset()
) -> ToolkitChoice:
    """The toolkit for torch's CUDA: equal, else of the same major version (newest first), and
    completed from torch's own wheels where headers are missing. One of another major version only
    where the request allows it, and after all others.

    Args:
        without_compiler: homes of those that no host compiler here goes with.
    """
    assert torch.cuda is not None
    alone = dict.fromkeys(without_compiler, "no host compiler here goes with it")
    others = dict.fromkeys(_not_meant(machine, request), INSISTED)
    refusals = {
        home: others.get(home) or _refusal(kit, torch, request) or alone.get(home, "")
        for home, kit in {kit.home: kit for kit in machine.toolkits}.items()
    }
    fitting = [kit for kit in machine.toolkits if not refusals[kit.home]]
    if not fitting:
        return _no_toolkit(machine, torch, request, refusals)
    best = max(fitting, key=lambda kit: _rank(kit, torch))
    rejected = tuple(
        Rejected(_label(kit), refusals[kit.home] or _second(kit, best, torch))
        for kit in machine.toolkits
        if kit is not best
    )
    decision = Decision(
        "toolkit",
        f"CUDA {best.version} at {best.home}",
        _why(best, torch),
        _evidence(best),
        (*rejected, *(Rejected(problem.subject, problem.found) for problem in machine.problems)),
    )
    mismatch = not _same_major(best, torch)
    planned, warnings = _planned(best, torch), _warnings(best, torch)
    return ToolkitChoice(best, planned, decision, (), warnings, mismatch)


def _rank(kit: Toolkit, torch: Torch) -> tuple[bool, bool, Version, bool]:
    exact = kit.version == torch.cuda
    return _same_major(kit, torch), exact, Version(kit.version), not kit.missing


def _same_major(kit: Toolkit, torch: Torch) -> bool:
    return Version(kit.version).major == Version(torch.cuda or "0").major


def _why(kit: Toolkit, torch: Torch) -> str:
    how = "has the major version of"
    if kit.version == torch.cuda:
        how = "is"
    elif not _same_major(kit, torch):
        how = "is, as --allow-cuda-mismatch says, taken although it is not"
    reason = f"{how} the CUDA that torch {torch.version} was built with ({torch.cuda})"
    given = _given(kit, torch)
    if given:
        reason += f"; {', '.join(given)} come from torch's own nvidia wheels"
    return reason


def _evidence(kit: Toolkit) -> str:
    worked = [trial.cxx for trial in kit.trials if not trial.error]
    tried = f"; compiled a kernel with {worked[0]}" if worked else ""
    kind = "" if kit.kind == "toolkit" else f" ({kit.kind})"
    return f"nvcc --version{tried}; found by {', '.join(kit.found_by)}{kind}"


def _warnings(kit: Toolkit, torch: Torch) -> tuple[str, ...]:
    if kit.version == torch.cuda:
        return ()
    if not _same_major(kit, torch):
        return (
            f"nvcc {kit.version} is of another major version than torch's CUDA {torch.cuda}: "
            "torch's own check refuses that for ops with device code, and no variable turns it "
            "off; only ops without device code can be built.",
        )
    return (
        f"nvcc {kit.version} builds for a torch of CUDA {torch.cuda}: one major version, so they "
        "work together.",
    )


def _second(kit: Toolkit, best: Toolkit, torch: Torch) -> str:
    if not _same_major(kit, torch):
        return f"another major version than torch's CUDA {torch.cuda}, and one of the same is here"
    if kit.version == best.version:
        return f"the same version as the chosen one{', and less complete' if kit.missing else ''}"
    if best.version == torch.cuda:
        return f"CUDA {kit.version} is further from torch's {torch.cuda}"
    return "older than the chosen one"


def _label(kit: Toolkit) -> str:
    kind = "" if kit.kind == "toolkit" else f" ({kit.kind})"
    return f"CUDA {kit.version} at {kit.home}{kind}"


def _refusal(kit: Toolkit, torch: Torch, request: Request) -> str:
    """Why a toolkit cannot serve, "" if it can."""
    if request.toolkit not in {"", "auto", kit.version}:
        return f"CUDA {request.toolkit} is asked for with --toolkit"
    if not _same_major(kit, torch) and not request.allow_cuda_mismatch:
        return f"another major version than torch's CUDA {torch.cuda}: torch's own check refuses it"
    return _unusable(kit, torch)


def _not_meant(machine: Machine, request: Request) -> set[str]:
    """The homes of those that --cuda-home does not mean. On a recorded machine, which was not
    probed with the option, it means toolkits by their names."""
    if not request.cuda_home:
        return set()
    asked = {kit.home for kit in machine.toolkits if "--cuda-home" in kit.found_by}
    named = {kit.home for kit in machine.toolkits if _is_named(kit, request.cuda_home)}
    return {kit.home for kit in machine.toolkits} - (asked & named or named or asked)


def _is_named(kit: Toolkit, wanted: str) -> bool:
    """By its home, or by the link or nvcc that led to it."""
    home = toolkit_home(wanted)
    names = {kit.home, kit.nvcc, *kit.found_by}
    return bool(names & {home, wanted, f"nvcc on PATH ({home}/bin/nvcc)"})


def _unusable(kit: Toolkit, torch: Torch) -> str:
    broken = [name for name in kit.missing if name in _PROGRAMS]
    if broken:
        return f"incomplete: no {', '.join(broken)}"
    lacking = _lacking(kit, torch)
    if lacking:
        return f"incomplete: no {', '.join(lacking)}, and torch's nvidia wheels lack them too"
    errors = [trial.error for trial in kit.trials]
    if errors and all(errors) and not any(_THE_COMPILER.search(error) for error in errors):
        return f"it does not compile a small kernel: {errors[0]}"
    return ""


def _given(kit: Toolkit, torch: Torch) -> list[str]:
    """The missing headers and libraries that torch's nvidia wheels hold."""
    held = {name for pack in _packs(kit, torch) for name in pack.headers}
    held |= {f"lib{name}.so" for pack in _packs(kit, torch) for name in pack.libraries}
    return [name for name in kit.missing if name in held]


def _lacking(kit: Toolkit, torch: Torch) -> list[str]:
    given = _given(kit, torch)
    return [name for name in kit.missing if name not in given and name not in _PROGRAMS]


def _packs(kit: Toolkit, torch: Torch) -> tuple[NvidiaPackage, ...]:
    return own_packs(torch) if _same_major(kit, torch) else ()


def own_packs(torch: Torch) -> tuple[NvidiaPackage, ...]:
    """The folders of torch's nvidia wheels that are of its own CUDA."""
    return torch.packages_of(Version(torch.cuda or "0").major)


def _planned(kit: Toolkit, torch: Torch) -> PlannedToolkit:
    packs = _packs(kit, torch)
    via = "overlay of this toolkit" + (" and torch's own nvidia wheels" if packs else "")
    include = dict.fromkeys([*kit.include, *(pack.include for pack in packs if pack.include)])
    lib = dict.fromkeys([*kit.lib, *(pack.lib for pack in packs if pack.lib)])
    return PlannedToolkit(
        version=kit.version,
        home=kit.home,
        via=via,
        nvcc=kit.nvcc,
        include=tuple(folder for folder in include if not _SEARCHED_ANYWAY.match(folder)),
        lib=tuple(folder for folder in lib if not _SEARCHED_ANYWAY.match(folder)),
    )


def _no_toolkit(
    machine: Machine, torch: Torch, request: Request, refusals: dict[str, str]
) -> ToolkitChoice:
    assert torch.cuda is not None
    rejected = (
        *(Rejected(_label(kit), refusals[kit.home]) for kit in machine.toolkits),
        *(Rejected(problem.subject, problem.found) for problem in machine.problems),
    )
    named = [each for each in rejected if toolkit_home(request.cuda_home) in each.value]
    told = [each for each in named or rejected if each.reason != INSISTED]
    seen = "; ".join(f"{each.value}: {each.reason}" for each in told)
    reason = "no toolkit on this machine can build for this torch"
    if request.cuda_home or request.toolkit not in {"", "auto"}:
        reason = "the one that is insisted on does not do"
    asked = fixes.cuda_to_get(torch, request)
    blocker = Blocker(
        "NO_TOOLKIT",
        seen or _not_here(machine, request),
        f"a CUDA {asked} toolkit (torch {torch.version} was built with CUDA {torch.cuda})",
        _toolkit_fix(machine, torch, request, asked),
    )
    return ToolkitChoice(None, None, Decision("toolkit", "none", reason, "", rejected), (blocker,))


def _not_here(machine: Machine, request: Request) -> str:
    if machine.toolkits:
        here = ", ".join(kit.home for kit in machine.toolkits)
        return f"{request.cuda_home} is none of the toolkits of this machine: {here}"
    return "no nvcc: not on PATH, nor in CUDA_HOME, /usr/local, /opt, conda or nvidia wheels"


def _toolkit_fix(machine: Machine, torch: Torch, request: Request, asked: str) -> str:
    assert torch.cuda is not None
    if Version(asked).major != Version(torch.cuda).major and not request.allow_cuda_mismatch:
        return f"--toolkit {torch.cuda}: torch's own check refuses another major version"
    free = replace(request, cuda_home="", toolkit="")
    others = [kit for kit in machine.toolkits if not _refusal(kit, torch, free)]
    if others and (request.cuda_home or request.toolkit):
        option = "--cuda-home" if request.cuda_home else "--toolkit"
        return f"leave {option} away: {_label(others[0])} fits"
    mends = [f"{p.subject}: {p.fix}" for p in machine.problems if p.fix]
    ways = [*fixes.toolkit(machine, asked), *other_torches(machine, torch), *mends]
    if not request.allow_cuda_mismatch and machine.toolkits:
        ways.append("--allow-cuda-mismatch, for the ops without device code alone")
    return "\n".join([ways[0], *(f"or {way}" for way in ways[1:])])


def other_torches(machine: Machine, torch: Torch) -> list[str]:
    """The builds of the same torch for the major versions that toolkits here have."""
    row = facts.torch_row(torch.version)
    here = {Version(kit.version).major for kit in machine.toolkits}
    builds = [cuda for cuda in (row.cuda_variants if row else ()) if Version(cuda).major in here]
    if Version(torch.cuda or "0").major in here:
        return []
    if not builds:
        return _other_releases(here)
    release = Version(torch.version)
    number = release.public if not release.is_prerelease else f"{release.major}.{release.minor}"
    names = " or ".join(f"{number}+cu{cuda.replace('.', '')}" for cuda in builds)
    return [f"use the build of torch for the toolkit that is here: {names}"]


def _other_releases(majors: set[int]) -> list[str]:
    """The torches that have a build for one of the CUDA major versions that are here."""
    rows = [r for r in facts.torch_rows() if majors & {Version(v).major for v in r.cuda_variants}]
    if not rows:
        return []
    cuda = ", ".join(f"{major}.x" for major in sorted(majors))
    return [f"use a torch for the toolkit that is here (CUDA {cuda}): from {rows[0].torch} on"]
