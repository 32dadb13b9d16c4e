"""One op's library: the code in it against what was planned, and what must not be in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import archspec.cpu

from deepbuild.check.archive import verdict
from deepbuild.check.inside import Inside
from deepbuild.facts.cpu_features import CPU_LEVELS
from deepbuild.model import BuildPlan, BuiltOp, Check

# Absolute names of source files, and of folders that are somebody's.
_PATH = re.compile(
    rb"(?<![\w.+@$/-])(?:/(?:[\w.+@-]+/)+[\w.+@-]+\.(?:cpp|cuh?|cc|cxx|hpp|h|c)\b"
    rb"|/(?:home|root|tmp|Users|scratch)/[\w./+@-]+)"
)
_OF_EVERYONE = (b"/usr/include/", b"/usr/lib/", b"/dev/shm/", b"/tmp/torch-")
_SHOWN = 80


def library_checks(op: BuiltOp, inside: Inside) -> Iterator[Check]:
    library, data = inside.libraries[op.name], inside.files[op.library]
    plan = inside.manifest.plan if inside.manifest else None
    yield device_code(op, plan)
    yield cpu_code(op, plan)
    outside = [path for path in library.run_paths if not path.startswith("$ORIGIN")]
    absolute = [f"looks for libraries in {path}" for path in outside]
    yield verdict(f"{op.name} run path", absolute, ", ".join(library.run_paths) or "none")
    yield _paths(op, path_problems(data), plan)
    wanted = plan.flags.debug_info if plan else False
    debug = [] if wanted or not library.debug else [f"debug info: {', '.join(library.debug)}"]
    yield verdict(f"{op.name} debug info", debug, "as planned" if library.debug else "none")


def _paths(op: BuiltOp, found: list[str], plan: BuildPlan | None) -> Check:
    if plan is None and found:
        return Check(f"{op.name} paths", "skipped", f"nothing is promised; it {found[0]}")
    return verdict(f"{op.name} paths", found[:1], "names no file of where it was built")


def device_code(op: BuiltOp, plan: BuildPlan | None) -> Check:
    name = f"{op.name} device code"
    found = ", ".join([*(f"SASS {each}" for each in op.sass), *(f"PTX {each}" for each in op.ptx)])
    if plan is None:
        return Check(name, "skipped", f"nothing is promised; found {found or 'none'}")
    arches = next((each.arches for each in plan.ops if each.name == op.name), ())
    promised = {("SASS", arch.removesuffix("+PTX")) for arch in arches}
    promised |= {("PTX", arch.removesuffix("+PTX")) for arch in arches if arch.endswith("+PTX")}
    there = {*(("SASS", each) for each in op.sass), *(("PTX", each) for each in op.ptx)}
    problems = [f"no {kind} for {arch}" for kind, arch in sorted(promised - there)]
    problems += [f"{kind} for {arch}, not planned" for kind, arch in sorted(there - promised)]
    return verdict(name, problems, found or "none, as planned")


def cpu_code(op: BuiltOp, plan: BuildPlan | None) -> Check:
    """The instructions of the host code against the CPU level that was promised."""
    name, used = f"{op.name} CPU", ", ".join([op.cpu, *op.cpu_beyond])
    if not op.cpu:
        return Check(name, "skipped", "the code of this kind of CPU cannot be read here")
    if plan is None:
        return Check(name, "skipped", f"nothing is promised; found {used}")
    above = what_lacks(plan.cpu, op)
    if above is None:
        return Check(name, "skipped", f"uses {used}; what {plan.cpu} has is not known here")
    return verdict(name, [f"uses {each}, not in {plan.cpu}" for each in above], f"uses {used}")


def what_lacks(promised: str, op: BuiltOp) -> list[str] | None:
    """What a processor lacks of what an op's code uses; None of one that nobody knows."""
    level, features = promised, frozenset[str]()
    if promised not in CPU_LEVELS:
        target = archspec.cpu.TARGETS.get(promised.replace("-", "_"))
        if target is None:
            return None
        level, features = target.generic.name.replace("_", "-"), frozenset(target.features)
    if level not in CPU_LEVELS:
        return None
    higher = [op.cpu] if CPU_LEVELS.index(op.cpu) > CPU_LEVELS.index(level) else []
    return higher + [each for each in op.cpu_beyond if each not in features]


def path_problems(data: bytes) -> list[str]:
    found = {match.group().decode() for match in _PATH.finditer(data)}
    named = sorted(path for path in found if not path.startswith(_decoded()))
    return [f"names {path[:_SHOWN]}" for path in named]


def _decoded() -> tuple[str, ...]:
    return tuple(each.decode() for each in _OF_EVERYONE)
