"""Which toolkit and which host compiler: an exact match first, then what can be made to work."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import Version

from deepbuild import facts
from deepbuild.model import (
    Blocker,
    Compiler,
    Decision,
    Machine,
    NvidiaPackage,
    PlannedCompiler,
    PlannedToolkit,
    Rejected,
    Request,
    Toolkit,
    Torch,
    replace,
)
from deepbuild.plan import fixes

# The oldest gcc whose -std=c++NN torch's headers compile with: c10 refuses gcc below 9
# ("We need GCC 9 or later"), and gcc 9 does not know -std=c++20.
_OLDEST_GCC = {14: 5, 17: 9, 20: 10}
_CU = re.compile(r"^cu\d+$")
_BESIDE_CUDA = {"cudnn", "cusparselt", "nccl", "nvshmem"}
_PROGRAMS = ("bin/ptxas", "bin/cudafe++", "bin/fatbinary", "nvvm/bin/cicc")


@dataclass(frozen=True)
class ToolkitChoice:
    toolkit: Toolkit | None
    planned: PlannedToolkit | None
    decision: Decision
    blockers: tuple[Blocker, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompilerChoice:
    planned: PlannedCompiler | None
    decision: Decision
    blockers: tuple[Blocker, ...] = ()


def choose_toolkit(machine: Machine, torch: Torch, request: Request) -> ToolkitChoice:
    """The toolkit for torch's CUDA: equal, else of the same major version (newest first), and
    completed from torch's own wheels where headers are missing."""
    assert torch.cuda is not None
    refusals = {kit.home: _refusal(kit, torch, request) for kit in machine.toolkits}
    fitting = [kit for kit in machine.toolkits if not refusals[kit.home]]
    if not fitting:
        return _no_toolkit(machine, torch, request, refusals)
    best = max(fitting, key=lambda kit: _rank(kit, torch))
    planned = _planned(best, torch)
    others = [kit for kit in machine.toolkits if kit is not best]
    rejected = tuple(
        Rejected(_label(kit), refusals[kit.home] or _second(kit, best, torch)) for kit in others
    )
    decision = Decision(
        "toolkit",
        f"CUDA {best.version} at {best.home}",
        _why(best, torch),
        f"nvcc --version; found by {', '.join(best.found_by)}",
        (*rejected, *(Rejected(problem.subject, problem.found) for problem in machine.problems)),
    )
    return ToolkitChoice(best, planned, decision, (), _minor_warning(best, torch))


def _rank(kit: Toolkit, torch: Torch) -> tuple[bool, bool, Version]:
    return kit.version == torch.cuda, not kit.missing, Version(kit.version)


def _why(kit: Toolkit, torch: Torch) -> str:
    how = "is" if kit.version == torch.cuda else "has the major version of"
    reason = f"{how} the CUDA that torch {torch.version} was built with ({torch.cuda})"
    given = _given(kit, torch)
    if given:
        reason += f"; {', '.join(given)} come from torch's own nvidia wheels"
    return reason


def _minor_warning(kit: Toolkit, torch: Torch) -> tuple[str, ...]:
    if kit.version == torch.cuda:
        return ()
    return (
        f"nvcc {kit.version} builds for a torch of CUDA {torch.cuda}: one major version, so they "
        "work together; PTX made by it needs a driver for its own minor version.",
    )


def _second(kit: Toolkit, best: Toolkit, torch: Torch) -> str:
    if kit.version == best.version:
        return f"the same version as the chosen one{', and less complete' if kit.missing else ''}"
    return f"CUDA {kit.version} is further from torch's {torch.cuda}"


def _label(kit: Toolkit) -> str:
    return f"CUDA {kit.version} at {kit.home}"


def _refusal(kit: Toolkit, torch: Torch, request: Request) -> str:
    """Why a toolkit cannot serve, "" if it can."""
    assert torch.cuda is not None
    names = ("--cuda-home", request.cuda_home.rstrip("/"))
    if request.cuda_home and not {kit.home, *kit.found_by}.intersection(names):
        return "another one is insisted on with --cuda-home"
    if Version(kit.version).major != Version(torch.cuda).major:
        return f"another major version than torch's CUDA {torch.cuda}: torch's own check refuses it"
    broken = [name for name in kit.missing if name in _PROGRAMS]
    if broken:
        return f"incomplete: no {', '.join(broken)}"
    lacking = _lacking(kit, torch)
    if lacking:
        return f"incomplete: no {', '.join(lacking)}, and torch's nvidia wheels lack them too"
    return ""


def _given(kit: Toolkit, torch: Torch) -> list[str]:
    """The missing headers and libraries that torch's nvidia wheels hold."""
    held = {name for pack in _packs(torch) for name in pack.headers}
    held |= {f"lib{name}.so" for pack in _packs(torch) for name in pack.libraries}
    return [name for name in kit.missing if name in held]


def _lacking(kit: Toolkit, torch: Torch) -> list[str]:
    given = _given(kit, torch)
    return [name for name in kit.missing if name not in given and name not in _PROGRAMS]


def _packs(torch: Torch) -> tuple[NvidiaPackage, ...]:
    """The folders of torch's nvidia wheels that go with its CUDA. Those of another major version
    may lie there still: `cuN` holds all of CUDA N (13 and newer); the folders by component are
    CUDA 12's, but for the libraries that both have."""
    own = f"cu{(torch.cuda or '').partition('.')[0]}"
    names = {pack.name for pack in torch.nvidia}
    fitting = [pack for pack in torch.nvidia if pack.name == own or not _CU.match(pack.name)]
    if own in names:
        fitting = [pack for pack in fitting if pack.name == own or pack.name in _BESIDE_CUDA]
    return tuple(fitting)


def _planned(kit: Toolkit, torch: Torch) -> PlannedToolkit:
    packs = _packs(torch)
    via = "overlay of this toolkit" + (" and torch's own nvidia wheels" if packs else "")
    return PlannedToolkit(
        version=kit.version,
        home=kit.home,
        via=via,
        nvcc=kit.nvcc,
        include=(kit.include, *(pack.include for pack in packs if pack.include)),
        lib=(kit.lib, *(pack.lib for pack in packs if pack.lib)),
    )


def _no_toolkit(
    machine: Machine, torch: Torch, request: Request, refusals: dict[str, str]
) -> ToolkitChoice:
    assert torch.cuda is not None
    rejected = (
        *(Rejected(_label(kit), refusals[kit.home]) for kit in machine.toolkits),
        *(Rejected(problem.subject, problem.found) for problem in machine.problems),
    )
    seen = "; ".join(f"{each.value}: {each.reason}" for each in rejected)
    reason = "no toolkit on this machine can build for this torch"
    blocker = Blocker(
        "NO_TOOLKIT",
        seen or "no nvcc on PATH, in CUDA_HOME, CUDA_PATH, /usr/local/cuda*, /opt/cuda*",
        f"a CUDA {torch.cuda} toolkit (torch {torch.version} was built with CUDA {torch.cuda})",
        _toolkit_fix(machine, torch, request),
    )
    return ToolkitChoice(None, None, Decision("toolkit", "none", reason, "", rejected), (blocker,))


def _toolkit_fix(machine: Machine, torch: Torch, request: Request) -> str:
    assert torch.cuda is not None
    free = replace(request, cuda_home="")
    others = [kit for kit in machine.toolkits if not _refusal(kit, torch, free)]
    if others:
        return f"leave --cuda-home away: {_label(others[0])} fits"
    mends = [f"{p.subject}: {p.fix}" for p in machine.problems if p.fix]
    ways = [fixes.toolkit(machine, torch.cuda), *_other_torches(machine, torch), *mends]
    return "\n".join(ways)


def _other_torches(machine: Machine, torch: Torch) -> list[str]:
    """The builds of the same torch for the major versions that toolkits here have."""
    row = facts.torch_row(torch.version)
    here = {Version(kit.version).major for kit in machine.toolkits}
    builds = [cuda for cuda in (row.cuda_variants if row else ()) if Version(cuda).major in here]
    if not builds or Version(torch.cuda or "0").major in here:
        return []
    release = Version(torch.version).public
    names = " or ".join(f"{release}+cu{cuda.replace('.', '')}" for cuda in builds)
    return [f"or use the build of torch for the toolkit that is here: {names}"]


def choose_compiler(
    machine: Machine, torch: Torch, toolkit: Toolkit | None, request: Request
) -> CompilerChoice:
    """The newest host compiler that nvcc accepts and torch's headers can use."""
    refusals = {each.cxx: _unfit(each, torch, toolkit, request) for each in machine.compilers}
    fitting = [each for each in machine.compilers if not refusals[each.cxx]]
    if not fitting:
        free = replace(request, cxx="")
        others = [c for c in machine.compilers if not _unfit(c, torch, toolkit, free)]
        return _no_compiler(machine, toolkit, refusals, others)
    best = next((each for each in fitting if each.found_by == "--cxx"), None) or max(
        fitting, key=lambda each: (each.family == "gcc", Version(each.version))
    )
    rejected = tuple(
        Rejected(_named(each), refusals[each.cxx] or "an older one, or clang where gcc is there")
        for each in machine.compilers
        if each is not best
    )
    decision = Decision(
        "host compiler",
        f"{_named(best)} at {best.cxx}",
        f"the newest that {_limits(toolkit)} and torch's {_std(torch)} headers accept",
        f"{best.cxx} -dumpfullversion; compiled a C++17 file; found by {best.found_by}",
        rejected,
    )
    return CompilerChoice(PlannedCompiler(best.family, best.version, best.cc, best.cxx), decision)


def gcc_max(toolkit: Toolkit) -> int | None:
    """The newest gcc for a toolkit: its own header's word, else the table's; None is unknown."""
    row = facts.host_limits(toolkit.version)
    return toolkit.gcc_max or (row.gcc_max if row else None)


def _clang_max(toolkit: Toolkit) -> int | None:
    row = facts.host_limits(toolkit.version)
    return toolkit.clang_max or (row.clang_max if row else None)


def _limits(toolkit: Toolkit | None) -> str:
    if toolkit is None:
        return "the build"
    most = gcc_max(toolkit)
    return f"nvcc {toolkit.version} (gcc up to {most})" if most else f"nvcc {toolkit.version}"


def _std(torch: Torch) -> str:
    return f"C++{torch.min_cxx_std or 17}"


def _named(compiler: Compiler) -> str:
    return f"{compiler.family} {compiler.version or '?'}"


def _unfit(each: Compiler, torch: Torch, toolkit: Toolkit | None, request: Request) -> str:
    """Why a compiler cannot serve, "" if it can."""
    if request.cxx and each.found_by != "--cxx" and each.cxx != request.cxx:
        return "another one is insisted on with --cxx"
    if each.broken:
        return each.broken
    if not each.cc:
        return "its C half is missing"
    return _version_unfit(each, torch, toolkit)


def _version_unfit(each: Compiler, torch: Torch, toolkit: Toolkit | None) -> str:
    if each.family not in {"gcc", "clang"}:
        return "neither gcc nor clang: nvcc takes no other host compiler"
    major = Version(each.version).major
    if each.family == "gcc" and major < _OLDEST_GCC.get(torch.min_cxx_std, 9):
        return f"too old for torch's {_std(torch)} headers"
    most = _most(each.family, toolkit)
    if most is not None and major > most:
        return f"nvcc {toolkit.version if toolkit else ''} accepts {each.family} up to {most}"
    return ""


def _most(family: str, toolkit: Toolkit | None) -> int | None:
    if toolkit is None:
        return None
    return gcc_max(toolkit) if family == "gcc" else _clang_max(toolkit)


def _no_compiler(
    machine: Machine,
    toolkit: Toolkit | None,
    refusals: dict[str, str],
    others: list[Compiler],
) -> CompilerChoice:
    rejected = tuple(
        Rejected(f"{_named(each)} at {each.cxx}", refusals[each.cxx]) for each in machine.compilers
    )
    most = gcc_max(toolkit) if toolkit else None
    fix = fixes.gcc(machine, most) if most and rejected else fixes.install(machine, "gcc")
    if others:
        fix = f"leave --cxx away: {_named(others[0])} at {others[0].cxx} fits"
    blocker = Blocker(
        "NO_COMPILER",
        "; ".join(f"{each.value}: {each.reason}" for each in rejected) or "no g++ or clang++",
        f"a C and C++ compiler that {_limits(toolkit)} accepts",
        fix,
    )
    reason = "no host compiler fits"
    return CompilerChoice(None, Decision("host compiler", "none", reason, "", rejected), (blocker,))
