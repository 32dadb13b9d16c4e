"""The build's environment: every variable that is set, with the reason. `{work}` stands for the
folder that the build works in."""

from __future__ import annotations

import msgspec

from deepbuild.model import (
    BuildPlan,
    EnvVar,
    PlannedCompiler,
    PlannedOp,
    PlannedPython,
    PlannedToolkit,
)

EXTRA = "{work}/extra"
_SYSTEM = ("/usr/local", "/usr", "")


class Circumstances(msgspec.Struct, frozen=True):
    """What beside the plan's own fields decides a variable.

    `unchecked` is why torch's check of the compiler is off, "" if it is on; `cutlass` the folder
    of CUTLASS for an op that needs it; `loader_path` the folders that LD_LIBRARY_PATH keeps, and
    `loader_left_out` those that it does not.
    """

    unchecked: str = ""
    cutlass: str = ""
    loader_path: tuple[str, ...] = ()
    loader_left_out: tuple[str, ...] = ()
    needs_dl: bool = False
    """Whether libcufile is linked where dlopen is in a library of its own."""


def environment(plan: BuildPlan, around: Circumstances) -> dict[str, EnvVar]:
    """All variables of a build, in the order that a person wants to read them."""
    env = {"DS_ACCELERATOR": EnvVar(plan.accelerator, _accelerator_reason(plan.accelerator))}
    env |= _cuda(plan.toolkit, plan.torch.cuda, plan.arches)
    env |= _ops(plan.ops)
    env |= _naming(plan.local_version)
    env |= _compilers(plan.compiler, around.unchecked)
    env |= _parallel(plan.jobs)
    env |= _folders(plan.python, plan.compiler)
    if around.needs_dl:
        reason = "before glibc 2.34 libcufile finds dlopen only in libdl, and does not name it"
        env["LDFLAGS"] = EnvVar("-Wl,--no-as-needed -ldl", reason)
    return env | _parts(plan.extra, around) | _loader_path(around)


def _accelerator_reason(accelerator: str) -> str:
    if accelerator == "cpu":
        return "torch has no CUDA: the ops of DeepSpeed's CPU accelerator are built"
    return "without it, a machine that sees no GPU builds no CUDA op and records accelerator cpu"


def _cuda(
    toolkit: PlannedToolkit | None, cuda: str | None, arches: tuple[str, ...]
) -> dict[str, EnvVar]:
    ignored = EnvVar("1", "the arch list says which GPUs are built for, not the first one here")
    if toolkit is None and cuda is None:
        return {}
    if toolkit is None:
        reason = "no toolkit: a stand-in only answers DeepSpeed's question for nvcc's version"
        home = EnvVar("{work}/cuda", reason)
        return {"CUDA_HOME": home, "DS_IGNORE_CUDA_DETECTION": ignored}
    env = {
        "CUDA_HOME": EnvVar("{work}/cuda", f"{toolkit.via}; nvcc {toolkit.version} through a shim"),
        "TORCH_CUDA_ARCH_LIST": EnvVar(
            ";".join(arches), "without it, DeepSpeed's defaults hold arches that nvcc may refuse"
        ),
    }
    env["DS_IGNORE_CUDA_DETECTION"] = ignored
    if toolkit.version != cuda:
        # DeepSpeed's own table of minor versions that go together ends at CUDA 12.
        same = toolkit.version.partition(".")[0] == (cuda or "").partition(".")[0]
        reason = "share their major version" if same else "differ, as --allow-cuda-mismatch allows"
        said = f"nvcc {toolkit.version} and torch's CUDA {cuda} {reason}"
        env["DS_SKIP_CUDA_CHECK"] = EnvVar("1", said)
    return env


def _ops(ops: tuple[PlannedOp, ...]) -> dict[str, EnvVar]:
    env = {"DS_BUILD_OPS": EnvVar("0", "only the planned ops, not all that seem compatible")}
    for op in ops:
        if op.build_var:
            planned = op.verdict == "build"
            reason = "planned" if planned else f"left out: {op.reason}"
            env[op.build_var] = EnvVar("1" if planned else "0", f"{op.name}: {reason}")
    return env


def _naming(local_version: str) -> dict[str, EnvVar]:
    return {
        "DS_BUILD_STRING": EnvVar(
            f"+{local_version}", "names the wheel by what is in it: no two that differ share a name"
        )
    }


def _compilers(compiler: PlannedCompiler | None, unchecked: str) -> dict[str, EnvVar]:
    if compiler is None:
        return {}
    kind = f"{compiler.family} {compiler.version}"
    reason = f"first on PATH, records what {{}} ({kind}) then runs with the planned flags"
    env = {
        "CC": EnvVar("gcc", reason.format(compiler.cc)),
        "CXX": EnvVar("g++", reason.format(compiler.cxx)),
        "TORCH_NO_COMPILER_WRAPPER": EnvVar("1", "torch would put a ccache on PATH before nvcc"),
    }
    if compiler.family == "clang":
        env["TORCH_DONT_CHECK_COMPILER_ABI"] = EnvVar(
            "1", "torch would hold clang's version against gcc's limits; nvcc's own were checked"
        )
    elif unchecked:
        env["TORCH_DONT_CHECK_COMPILER_ABI"] = EnvVar("1", unchecked)
    return env


def _parallel(jobs: int) -> dict[str, EnvVar]:
    return {
        "DS_ENABLE_NINJA": EnvVar("1", "without ninja the files of an op compile one by one"),
        "MAX_JOBS": EnvVar(str(jobs), "as many compilers as cores and memory allow"),
        "DS_NVCC_THREADS": EnvVar("1", "each nvcc is one of these; more would exceed the limit"),
    }


def _folders(python: PlannedPython, compiler: PlannedCompiler | None) -> dict[str, EnvVar]:
    # A compiler of a toolset finds its own assembler and linker through PATH.
    programs = [python.executable, *([compiler.cxx] if compiler else [])]
    own = [program.rpartition("/")[0] for program in programs]
    system = [f"{root}/{folder}" for root in _SYSTEM for folder in ("sbin", "bin")]
    path = dict.fromkeys(["{work}/shims", *filter(None, own), *system])
    return {
        "PATH": EnvVar(
            ":".join(path), "the shims first, then this interpreter and compiler, then the system"
        ),
        "PYTHONPATH": EnvVar(
            "{work}/tools", "deepbuild's own setuptools and wheel: the environment needs none"
        ),
        "PYTHONDONTWRITEBYTECODE": EnvVar("1", "nothing is written into the environment"),
        "PYTHONHASHSEED": EnvVar("0", "setup.py makes lists of sets: in the same order each time"),
        "TMPDIR": EnvVar("{work}/tmp", "compilers' temporary files stay in the cache"),
    }


def _parts(extra: dict[str, str], around: Circumstances) -> dict[str, EnvVar]:
    """Headers and libraries that only some ops need, and that no compiler finds by itself."""
    env = {}
    if around.cutlass:
        env["CUTLASS_PATH"] = EnvVar(around.cutlass, "evoformer_attn is made of CUTLASS")
    for folder, variable in (("include", "CPATH"), ("lib", "LIBRARY_PATH")):
        targets = [target for name, target in extra.items() if name.startswith(f"{folder}/")]
        if targets:
            reason = f"links to {', '.join(targets)}, which no compiler finds by itself"
            env[variable] = EnvVar(f"{EXTRA}/{folder}", reason)
    return env


def _loader_path(around: Circumstances) -> dict[str, EnvVar]:
    if not around.loader_path:
        return {}
    left_out = ", ".join(around.loader_left_out)
    without = f", without {left_out} (gone, or another CUDA's)" if left_out else ""
    reason = f"the shell's, in its order{without}: compilers of module trees need it"
    return {"LD_LIBRARY_PATH": EnvVar(":".join(around.loader_path), reason)}
