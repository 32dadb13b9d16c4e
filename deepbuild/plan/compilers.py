"""Which host compiler: the newest that nvcc, torch's headers and the target's libstdc++ accept."""

from __future__ import annotations

import re

import msgspec
from packaging.version import Version

from deepbuild import facts
from deepbuild.model import (
    Blocker,
    Compiler,
    Decision,
    HostBound,
    Machine,
    PlannedCompiler,
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
INSISTED = "another one is insisted on with --cxx"


class CompilerChoice(msgspec.Struct, frozen=True):
    """`unchecked` says why torch's own check of the compiler is to be switched off, "" if not;
    `fitting` are all that would do, with --cxx as well."""

    compiler: Compiler | None
    planned: PlannedCompiler | None
    decision: Decision
    blockers: tuple[Blocker, ...] = ()
    unchecked: str = ""
    fitting: tuple[Compiler, ...] = ()


class _Around(msgspec.Struct, frozen=True):
    """What a compiler has to go with."""

    machine: Machine
    torch: Torch
    toolkit: Toolkit | None
    request: Request

    @property
    def free(self) -> _Around:
        """The same without --cxx."""
        return _Around(self.machine, self.torch, self.toolkit, replace(self.request, cxx=""))

    @property
    def insisted(self) -> tuple[str, ...]:
        """Those that --cxx means. On a recorded machine, which was not probed with the option, it
        means them by their names."""
        asked = [each for each in self.machine.compilers if each.found_by == "--cxx"]
        named = [each for each in self.machine.compilers if _is_named(each, self.request.cxx)]
        both = [each for each in named if each in asked]
        return tuple(each.cxx for each in both or named or asked)


def choose_compiler(
    machine: Machine, torch: Torch, toolkit: Toolkit | None, request: Request
) -> CompilerChoice:
    """The newest host compiler that nvcc accepts and torch's headers can use.

    Preferred are those that torch's own table takes as well, that need no newer libstdc++ than
    the target has, and that can do all that ops may ask for; among these gcc, then the newest.
    """
    around = _Around(machine, torch, toolkit, request)
    refusals = {each.cxx: _unfit(each, around) for each in machine.compilers}
    fitting = [each for each in machine.compilers if not refusals[each.cxx]]
    if not fitting:
        return _no_compiler(around, refusals)
    best = max(fitting, key=lambda each: _rank(each, around))
    reason = _why(best, around)
    rejected = tuple(
        Rejected(f"{_named(each)} at {each.cxx}", refusals[each.cxx] or _second(each, best, around))
        for each in machine.compilers
        if each is not best
    )
    decision = Decision(
        "host compiler", f"{_named(best)} at {best.cxx}", reason, _evidence(best, around), rejected
    )
    planned = PlannedCompiler(best.family, best.version, best.cc, best.cxx)
    blockers = _runtime_blocker(best, around)
    others = tuple(each for each in machine.compilers if not _unfit(each, around.free))
    return CompilerChoice(best, planned, decision, blockers, _unchecked(best, around), others)


def _rank(each: Compiler, around: _Around) -> tuple[bool, bool, bool, bool, int, Version]:
    gcc = each.family == "gcc"
    inside, loadable = not _outside(each, around), not _too_new_runtime(each, around.torch)
    return inside, loadable, gcc, "openmp" not in each.lacks, -len(each.lacks), _version(each)


def _version(each: Compiler) -> Version:
    return Version(each.version)


def _why(best: Compiler, around: _Around) -> str:
    if around.request.cxx:
        return f"insisted on with --cxx; {_accepted_by(around)} accept it"
    newer = [c for c in around.machine.compilers if _is_newer(c, best) and not _unfit(c, around)]
    unloadable = any(_too_new_runtime(each, around.torch) for each in newer)
    loads = " and whose code the libstdc++ here can load" if unloadable else ""
    return f"the newest that {_accepted_by(around)} accept{loads}"


def _is_newer(each: Compiler, best: Compiler) -> bool:
    return each.family == best.family and bool(each.version) and _version(each) > _version(best)


def _accepted_by(around: _Around) -> str:
    return f"{_limits(around)} and torch's {_std(around.torch)} headers"


def _evidence(best: Compiler, around: _Around) -> str:
    kit = around.toolkit
    kernel = kit and any(trial.cxx == best.cxx and not trial.error for trial in kit.trials)
    with_nvcc = f", and a kernel with nvcc {kit.version}" if kit and kernel else ""
    return (
        f"{best.cxx} -dumpfullversion; compiled and linked C++{best.cxx_std or 17}{with_nvcc}; "
        f"found by {best.found_by}"
    )


def _second(each: Compiler, best: Compiler, around: _Around) -> str:
    """Why a compiler that would do is not the one."""
    outside = _outside(each, around)
    if outside and not _outside(best, around):
        return outside
    if _too_new_runtime(each, around.torch):
        return _too_new_runtime(each, around.torch)
    if each.family != best.family:
        return f"{best.family} is there"
    lacks = [name for name in each.lacks if name not in best.lacks]
    if lacks:
        return f"it cannot build with {' and '.join(lacks)}: {each.lacks[lacks[0]]}"
    return "the same version" if each.version == best.version else "an older one"


def _most(family: str, around: _Around) -> int | None:
    """The newest gcc or clang: the toolkit's own header's word, else the table's; None is unknown.
    With no toolkit yet, that of torch's CUDA counts: it is the one to be installed."""
    kit = around.toolkit
    own = (kit.gcc_max if family == "gcc" else kit.clang_max) if kit else None
    row = facts.host_limits(kit.version if kit else around.torch.cuda or "")
    table = (row.gcc_max if family == "gcc" else row.clang_max) if row else None
    return own or table


def _nvcc(around: _Around) -> str:
    """The nvcc that decides, "" for none."""
    if around.toolkit:
        return f"nvcc {around.toolkit.version}"
    return f"the nvcc of CUDA {around.torch.cuda}" if around.torch.cuda else ""


def _limits(around: _Around) -> str:
    most = _most("gcc", around)
    return (_nvcc(around) or "the build") + (f" (gcc up to {most})" if most else "")


def _std(torch: Torch) -> str:
    return f"C++{torch.min_cxx_std or 17}"


def _named(compiler: Compiler) -> str:
    return f"{compiler.family} {compiler.version or '?'}"


def _unfit(each: Compiler, around: _Around) -> str:
    """Why a compiler cannot serve, "" if it can."""
    request = around.request
    if request.cxx and each.cxx not in around.insisted:
        return INSISTED
    if each.broken:
        return each.broken
    if each.family not in {"gcc", "clang"}:
        return "neither gcc nor clang: nvcc and torch take no other host compiler on Linux"
    if not each.cc:
        return "its C half is missing"
    return _version_unfit(each, around) or _failed_trial(each, around)


def _is_named(each: Compiler, wanted: str) -> bool:
    paths = (each.cxx, each.cc)
    return wanted in (*paths, *(path.rpartition("/")[2] for path in paths if path))


def _version_unfit(each: Compiler, around: _Around) -> str:
    torch, major = around.torch, _version(each).major
    wanted = max(17, torch.min_cxx_std)  # DeepSpeed's builders pass -std=c++17 from 0.14 on
    if each.family == "gcc" and major < _OLDEST_GCC.get(torch.min_cxx_std, 9):
        return f"too old for torch's {_std(torch)} headers"
    if each.cxx_std and each.cxx_std < wanted:
        return f"it compiles C++{each.cxx_std} and not C++{wanted}, which torch's headers demand"
    most = _most(each.family, around)
    if most is not None and major > most:
        return f"{_nvcc(around)} accepts {each.family} up to {most}"
    return ""


def _failed_trial(each: Compiler, around: _Around) -> str:
    trials = around.toolkit.trials if around.toolkit else ()
    error = next((trial.error for trial in trials if trial.cxx == each.cxx), "")
    return f"nvcc does not compile a small kernel with it: {error}" if error else ""


def _unchecked(best: Compiler, around: _Around) -> str:
    """Why torch's own check is to be off: it would refuse the one that is taken."""
    outside = _outside(best, around)
    because = "it is insisted on" if around.request.cxx else "none that both take is here"
    return f"{outside}; {because}" if outside else ""


def _outside(each: Compiler, around: _Around) -> str:
    """Why torch's own table would refuse a compiler that nvcc's header takes, "" if it does not."""
    bound = _bound(each, around)
    if bound is None or Version(bound.least) <= _version(each) < Version(bound.below):
        return ""
    return (
        f"torch's own table for CUDA {bound.cuda} takes {each.family} from {bound.least} and below "
        f"{bound.below}, although nvcc itself takes {each.version}"
    )


def _bound(each: Compiler, around: _Around) -> HostBound | None:
    """The row of torch's table for this toolkit, None where torch would only warn."""
    version = around.toolkit.version if around.toolkit else ""
    rows = (row for row in around.torch.host_bounds if row.cuda == version)
    return next((row for row in rows if row.family == each.family), None)


def _too_new_runtime(each: Compiler, torch: Torch) -> str:
    """Why the target's libstdc++ does not load a compiler's code, "" if it does."""
    needed = each.glibcxx
    there = torch.runtime.level if torch.runtime else ""
    if not needed or not there or Version(needed) <= Version(there):
        return ""
    assert torch.runtime is not None
    return (
        f"its code needs GLIBCXX_{needed}, and the libstdc++ that Python loads has up to "
        f"{there} ({torch.runtime.path})"
    )


def _runtime_blocker(best: Compiler, around: _Around) -> tuple[Blocker, ...]:
    found = _too_new_runtime(best, around.torch)
    if not found:
        return ()
    fix = _runtime_fix(best, around)
    wanted = f"a libstdc++ with GLIBCXX_{best.glibcxx}, or an older compiler"
    return (Blocker("LIBSTDCXX", f"{_named(best)} at {best.cxx}: {found}", wanted, fix),)


def _runtime_fix(best: Compiler, around: _Around) -> str:
    """A way out that names no compiler which this plan has refused."""
    torch, compilers = around.torch, around.machine.compilers
    refused = [each for each in compilers if _unfit(each, around.free)]
    loadable = [c for c in compilers if c not in refused and not _too_new_runtime(c, torch)]
    if loadable:
        return f"leave --cxx away: {_named(loadable[0])} at {loadable[0].cxx} fits"
    majors = frozenset(filter(None, map(_gcc_major, refused)))
    most = facts.newest_gcc_for(torch.runtime.level if torch.runtime else "")
    gccs = fixes.Gccs(_OLDEST_GCC.get(torch.min_cxx_std, 9), most, majors)
    return fixes.libstdcxx(around.machine, _version(best).major, gccs)


def _gcc_major(each: Compiler) -> int | None:
    """Of one that does not start, its name is all that tells it: g++-11."""
    if each.version:
        return _version(each).major if each.family == "gcc" else None
    named = re.search(r"g\+\+-([0-9]+)$", each.cxx)
    return int(named[1]) if named else None


def _no_compiler(around: _Around, refusals: dict[str, str]) -> CompilerChoice:
    machine, toolkit = around.machine, around.toolkit
    rejected = tuple(
        Rejected(f"{_named(each)} at {each.cxx}", refusals[each.cxx]) for each in machine.compilers
    )
    least = _OLDEST_GCC.get(around.torch.min_cxx_std, 9)
    cuda = "" if toolkit else fixes.cuda_to_get(around.torch, around.request)
    fix = fixes.gcc(machine, fixes.Gccs(least, _most("gcc", around), cuda=cuda))
    others = [c for c in machine.compilers if around.request.cxx and not _unfit(c, around.free)]
    if others:
        fix = f"leave --cxx away: {_named(others[0])} at {others[0].cxx} fits"
    blocker = Blocker(
        "NO_COMPILER",
        "; ".join(f"{e.value}: {e.reason}" for e in rejected if e.reason != INSISTED)
        or _not_here(machine, around.request),
        f"a C and C++ compiler that {_accepted_by(around)} accept",
        fix,
    )
    reason = "no host compiler fits"
    decision = Decision("host compiler", "none", reason, "", rejected)
    return CompilerChoice(None, None, decision, (blocker,))


def _not_here(machine: Machine, request: Request) -> str:
    if machine.compilers:
        here = ", ".join(each.cxx for each in machine.compilers)
        return f"{request.cxx} is none of the compilers of this machine: {here}"
    return "no g++ or clang++"
