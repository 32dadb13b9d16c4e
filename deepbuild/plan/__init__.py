"""plan(machine, source, request) -> BuildPlan: pure. No disk, clock, network or environment.

One decision per file; each comes with its reason, its evidence and what was rejected. All blockers
are reported at once.
"""

from __future__ import annotations

import re

import msgspec
from packaging.version import Version

from deepbuild import codec
from deepbuild.errors import ProbeError
from deepbuild.model import (
    Blocker,
    BuildPlan,
    Decision,
    Interpreter,
    Machine,
    Op,
    PlannedOp,
    PlannedPython,
    PlannedSource,
    PlannedTorch,
    Request,
    Source,
    Torch,
    replace,
)
from deepbuild.plan import fixes
from deepbuild.plan.arches import ArchChoice, choose_arches
from deepbuild.plan.compilers import CompilerChoice, choose_compiler
from deepbuild.plan.cpu import CpuChoice, choose_cpu
from deepbuild.plan.drivers import choose_driver
from deepbuild.plan.environ import Circumstances, environment
from deepbuild.plan.jobs import choose_jobs
from deepbuild.plan.needs import Surroundings
from deepbuild.plan.ops import choose_ops, known_wrong, no_device_code, wanted_ops
from deepbuild.plan.parts import cutlass_home, extra_links
from deepbuild.plan.platform import expected_platform
from deepbuild.plan.toolkits import ToolkitChoice, choose_toolkit

__all__ = ["accelerator_for", "has_toolkit", "plan", "require_torch"]

DISK_NEEDED = 2 * 2**30  # tree, objects and libraries of all ops, with room for nvcc's temporaries
_DL_IN_LIBC = "2.34"
_ROCM = "for ROCm {}: deepbuild builds ops for CUDA and for the CPU, so only the latter are planned"
_NO_ARCHES = ArchChoice((), Decision("arches", "none", "no CUDA in torch"))


def require_torch(machine: Machine) -> tuple[Interpreter, Torch]:
    """The target interpreter and its torch.

    Raises:
        ProbeError: there is no torch, with the ways on; or its version is none.
    """
    if machine.python and machine.torch:
        return machine.python, _versioned(machine.torch)
    python = machine.python.executable if machine.python else "python"
    found = "no torch/version.py in " + ", ".join(machine.torch_looked_for or ("no folder",))
    hints = [
        f"install it there:   {python} -m pip install torch",
        "or build for a torch that is not installed:   --torch 2.14.1",
        "or name another environment:   --python /path/to/venv",
    ]
    on_path = [each.found for each in machine.shell if each.subject == "PYTHONPATH"]
    if on_path and machine.python:
        file = f"{machine.python.site_packages}/pythonpath.pth"
        hints.append(f"or add the folders of PYTHONPATH:   echo $PYTHONPATH | tr : '\\n' >{file}")
    raise ProbeError(
        f"no torch in {python}",
        found="\n".join([found, *on_path]),
        wanted="the torch that DeepSpeed's ops will run with",
        hint="\n".join(hints),
    )


def _versioned(torch: Torch) -> Torch:
    """In a file that somebody edited it may be anything, and DeepSpeed's builders take it apart."""
    if not re.match(r"[0-9]+\.[0-9]+", torch.version):
        raise ProbeError(
            f"torch {torch.version} is no version",
            found=f"{torch.version!r}, of the torch in {torch.root}",
            wanted="one as torch/version.py has it: 2.14.1+cu130",
            hint="probe the machine again: deepbuild probe -o FILE",
        )
    return torch


def accelerator_for(torch: Torch) -> str:
    """DeepSpeed's accelerator for a torch: decides which ops there are."""
    return "cuda" if torch.cuda else "cpu"


def has_toolkit(machine: Machine, request: Request) -> bool:
    """Whether a toolkit is there that fits, or none is needed."""
    torch = machine.torch
    if torch is None or torch.cuda is None:
        return True
    return choose_toolkit(machine, torch, request).toolkit is not None


class _Choices(msgspec.Struct, frozen=True):
    toolkit: ToolkitChoice | None
    compiler: CompilerChoice
    arches: ArchChoice
    cpu: CpuChoice
    driver: tuple[Decision, ...] = ()
    driver_warnings: tuple[str, ...] = ()


def plan(machine: Machine, source: Source, request: Request) -> BuildPlan:
    """Decide a build.

    Raises:
        ProbeError: the machine has no torch.
        UsageError: the request cannot be meant (an unknown op, arch, GPU or CPU level).
    """
    python, torch = require_torch(machine)
    if torch.hip:  # that is the blocker; op names of CUDA would only hide it
        request = replace(request, ops=("auto",), allow_missing=())
    choices = _choose(machine, torch, source, request)
    compiler, arches = choices.compiler.compiler, choices.arches.arches
    fitting = choices.compiler.fitting
    around = Surroundings(machine, source, torch, choices.toolkit, arches, compiler, fitting)
    ops, op_blockers = choose_ops(around, request)
    blockers = [
        *_general_blockers(machine, python, torch),
        *_tool_blockers(choices, wanted_ops(source, request), request),
        *op_blockers,
    ]
    if "auto" in request.ops:
        blockers += no_device_code(around, ops)
    draft = _draft(machine, source, request, choices, ops)
    draft = replace(draft, extra=extra_links(draft, around.toolkit, machine, compiler))
    env = environment(draft, _circumstances(machine, torch, choices, draft))
    draft = replace(draft, env=env, blockers=tuple(blockers))
    return replace(draft, id=codec.plan_id(draft))


def _circumstances(
    machine: Machine, torch: Torch, choices: _Choices, draft: BuildPlan
) -> Circumstances:
    wants_cutlass = any(op.name == "evoformer_attn" for op in draft.built_ops())
    major = (torch.cuda or "").partition(".")[0]
    folders = machine.loader_path
    kept = tuple(name for name, cuda in folders.items() if not cuda or major in cuda)
    gone = tuple(name for name in folders if name not in kept)
    cutlass = cutlass_home(machine) if wants_cutlass else ""
    old_libc = _older_libc(machine.system.libc, _DL_IN_LIBC)
    gds = any(op.name == "gds" for op in draft.built_ops())
    unchecked = choices.compiler.unchecked
    return Circumstances(unchecked, cutlass, kept, gone, needs_dl=gds and old_libc)


def _older_libc(libc: str, than: str) -> bool:
    """
    >>> _older_libc("glibc 2.31", "2.34"), _older_libc("", "2.34")
    (True, False)
    """
    name, _, number = libc.partition(" ")
    return name == "glibc" and Version(number) < Version(than)


def _choose_tools(
    machine: Machine, torch: Torch, request: Request
) -> tuple[ToolkitChoice | None, CompilerChoice]:
    """The best toolkit with a compiler for it; where none goes with the best, with the next one."""
    if not torch.cuda:
        return None, choose_compiler(machine, torch, None, request)
    first = toolkit = choose_toolkit(machine, torch, request)
    alone: set[str] = set()
    while toolkit.toolkit:
        compiler = choose_compiler(machine, torch, toolkit.toolkit, request)
        if compiler.planned:
            return toolkit, compiler
        alone.add(toolkit.toolkit.home)
        toolkit = choose_toolkit(machine, torch, request, frozenset(alone))
    return first, choose_compiler(machine, torch, first.toolkit, request)


def _choose(machine: Machine, torch: Torch, source: Source, request: Request) -> _Choices:
    toolkit, compiler = _choose_tools(machine, torch, request)
    kit = toolkit.toolkit if toolkit else None
    arches = (
        choose_arches(machine, torch, kit, request, source.version) if torch.cuda else _NO_ARCHES
    )
    cpu = choose_cpu(machine, compiler.planned, request)
    if kit is None or not arches.arches:
        return _Choices(toolkit, compiler, arches, cpu)
    driver, warnings = choose_driver(machine, kit.version, arches.arches)
    return _Choices(toolkit, compiler, arches, cpu, (driver,), warnings)


def _draft(
    machine: Machine,
    source: Source,
    request: Request,
    choices: _Choices,
    ops: tuple[PlannedOp, ...],
) -> BuildPlan:
    """The plan, still without environment, blockers and id."""
    python, torch = require_torch(machine)
    jobs, memory, jobs_decision = choose_jobs(machine, request)
    local = _local_version(torch, choices, source, ops)
    chosen = {op.name for op in ops if op.verdict == "build"}
    built = [op for op in source.ops if op.name in chosen]
    wrong = known_wrong(chosen, source.version, choices.cpu.policy)
    platform = expected_platform(machine, choices.compiler.compiler, built)
    return BuildPlan(
        accelerator=source.accelerator,
        deepspeed=PlannedSource(source.version, source.origin, source.digest, source.spec),
        python=PlannedPython(python.executable, python.version, python.tag),
        torch=PlannedTorch(torch.version, torch.cuda, torch.root),
        toolkit=choices.toolkit.planned if choices.toolkit else None,
        compiler=choices.compiler.planned,
        arches=choices.arches.arches,
        cpu=choices.cpu.level,
        flags=choices.cpu.policy,
        ops=ops,
        env={},
        jobs=jobs,
        memory=memory,
        decisions=_decisions(machine, source, choices, jobs_decision),
        blockers=(),
        warnings=(*wrong, *_warnings(choices, machine, request, ops)),
        allow_missing=request.allow_missing,
        local_version=local,
        wheel=_wheel_name(source, local, f"{python.tag}-{platform}" if built else "py3-none-any"),
    )


def _decisions(
    machine: Machine, source: Source, choices: _Choices, jobs: Decision
) -> tuple[Decision, ...]:
    python, torch = require_torch(machine)
    cuda = f"CUDA {torch.cuda}" if torch.cuda else "without CUDA"
    cuda = f"for ROCm {torch.hip}" if torch.hip else cuda
    found = [
        Decision("DeepSpeed", source.version, source.origin, source.digest),
        Decision("Python", python.version, f"{python.kind} {python.prefix}", python.found_by),
        Decision("torch", torch.version, f"{cuda}, read in {torch.root}", "torch/version.py"),
    ]
    if choices.toolkit:
        found.append(choices.toolkit.decision)
    found.append(choices.compiler.decision)
    if torch.cuda:
        found.append(choices.arches.decision)
    return (*found, *choices.driver, choices.cpu.decision, jobs, *_shell(machine))


def _shell(machine: Machine) -> tuple[Decision, ...]:
    """What in the shell would mislead a build by hand: told, since the build uses none of it."""
    bad = [finding for finding in machine.shell if not finding.ok]
    if not bad:
        return ()
    told = "\n".join(f"{finding.subject}: {finding.found}" for finding in bad)
    return (Decision("shell", f"not used: {', '.join(f.subject for f in bad)}", told),)


def _warnings(
    choices: _Choices, machine: Machine, request: Request, ops: tuple[PlannedOp, ...]
) -> tuple[str, ...]:
    coded = any(op.arches for op in ops if op.verdict != "skip")
    toolkit = choices.toolkit.warnings if choices.toolkit else ()
    _, torch = require_torch(machine)
    unused = () if choices.toolkit or torch.hip else _without_cuda(machine, request)
    rocm = (f"this torch is {_ROCM.format(torch.hip)}",) if torch.hip else ()
    device = (*choices.arches.warnings, *choices.driver_warnings) if coded else ()
    return (*rocm, *unused, *toolkit, *device, *choices.cpu.warnings)


def _without_cuda(machine: Machine, request: Request) -> tuple[str, ...]:
    """GPUs that a torch without CUDA cannot use."""
    here = [gpu.name for gpu in machine.gpus.devices]
    named = list(dict.fromkeys([*request.gpus, *request.arches, *here]))
    if not named:
        return ()
    return (
        f"{', '.join(named)}: not served, since this torch has no CUDA and only ops for the CPU "
        "are built. Install a torch for CUDA there first, from torch's own index for it.",
    )


def _general_blockers(machine: Machine, python: Interpreter, torch: Torch) -> list[Blocker]:
    blockers = []
    if torch.hip:
        blockers.append(
            Blocker(
                "ROCM",
                f"torch {torch.version}, {_ROCM.format(torch.hip)}",
                "a torch for CUDA or for the CPU",
                "build with DeepSpeed's own setup.py, with DS_ACCELERATOR=cuda and "
                "PYTORCH_ROCM_ARCH set",
            )
        )
    if not python.headers:
        blockers.append(
            Blocker(
                "NO_PYTHON_H",
                f"no Python.h for {python.executable}",
                "the headers of this interpreter",
                fixes.python_headers(machine, python),
            )
        )
    free = machine.resources.disk_free
    if free < DISK_NEEDED:
        blockers.append(
            Blocker(
                "DISK_FULL",
                f"{free / 2**30:.1f} GiB free in the cache",
                f"{DISK_NEEDED / 2**30:.0f} GiB for a build",
                "free some space, or set DEEPBUILD_CACHE_DIR to another disk",
            )
        )
    return blockers


def _tool_blockers(choices: _Choices, wanted: tuple[Op, ...], request: Request) -> list[Blocker]:
    """A missing compiler blocks every op; a missing toolkit or arch blocks those for CUDA, which
    would silently be left out of an "auto" list. What was insisted on must fit in any case."""
    found = list(choices.compiler.blockers) if wanted or request.cxx else []
    for_cuda = any(op.derives_cuda for op in wanted)
    insisted = request.cuda_home or request.toolkit not in {"", "auto"}
    if choices.toolkit and (for_cuda or insisted):
        found += choices.toolkit.blockers
    if choices.toolkit and for_cuda:
        found += choices.arches.blockers
    return found


def _local_version(
    torch: Torch, choices: _Choices, source: Source, ops: tuple[PlannedOp, ...]
) -> str:
    """The local version label (PEP 440): readable facts, then a hash of all that tells builds
    apart. Segments start with a letter, since leading zeros of a number are dropped."""
    release = Version(torch.version)
    cuda = "cu" + torch.cuda.replace(".", "") if torch.cuda else "cpu"
    coded = {arch for op in ops if op.verdict == "build" for arch in op.arches}
    arches = [arch for arch in choices.arches.arches if arch in coded]
    sass = [f"sm{arch.replace('.', '').replace('+PTX', 'ptx')}" for arch in arches]
    level = "".join(char for char in choices.cpu.level if char.isalnum())
    content = [
        source.digest,
        torch.version,
        [op.name for op in ops if op.verdict == "build"],
        (kit.version, kit.home) if (kit := choices.toolkit and choices.toolkit.toolkit) else None,
        choices.compiler.planned,
        arches,
        choices.cpu.policy,
    ]
    tag = "b" + codec.identity(content)[:8]
    return ".".join([f"torch{release.major}", str(release.minor), cuda, *sass, level, tag]).lower()


def _wheel_name(source: Source, local: str, tags: str) -> str:
    public = Version(source.version).public
    return f"deepspeed-{public}+{local}-{tags}.whl"
