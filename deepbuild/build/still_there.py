"""Whether a plan still holds: it may be days old, or from another machine."""

from __future__ import annotations

from deepbuild.errors import PlanBlocked
from deepbuild.host import Host
from deepbuild.model import BuildPlan, PlannedCompiler, PlannedToolkit
from deepbuild.probe.compilers import look_at
from deepbuild.probe.nvcc_text import parse_nvcc_version
from deepbuild.probe.paths import identity_of
from deepbuild.probe.trials import kernel_error


def require_still_there(plan: BuildPlan, host: Host) -> None:
    """The planned torch and tools are where the plan says, are what it says, and work.

    Raises:
        PlanBlocked: with all that has changed.
    """
    gone = _gone(plan, host)
    if not gone and plan.compiler:
        gone = [_changed_compiler(host, plan.compiler)]
    if not any(gone) and plan.toolkit and plan.compiler:
        gone = [_changed_toolkit(host, plan.toolkit, plan.compiler)]
    if any(gone):
        raise PlanBlocked(
            "the plan does not fit this machine (any more)",
            found="\n".join(filter(None, gone)),
            wanted="the machine and environment that the plan was made for",
            hint="make a new plan here: deepbuild plan -o plan.json",
        )


def _gone(plan: BuildPlan, host: Host) -> list[str]:
    tools = {"python": plan.python.executable, "torch": f"{plan.torch.root}/version.py"}
    if plan.compiler:
        tools |= {"C compiler": plan.compiler.cc, "C++ compiler": plan.compiler.cxx}
    if plan.toolkit:
        tools["nvcc"] = plan.toolkit.nvcc
        tools |= {"CUDA headers": folder for folder in plan.toolkit.include[:1]}  # noqa: B035
    tools |= {name.rpartition("/")[2]: path for name, path in plan.extra.items()}
    gone = [f"no {what} at {path}" for what, path in tools.items() if host.file_id(path) is None]
    text = host.read_text(tools["torch"])
    if text is not None and plan.torch.version not in text:
        gone.append(f"another torch than {plan.torch.version} in {plan.torch.root}")
    return gone


def _changed_compiler(host: Host, planned: PlannedCompiler) -> str:
    found = look_at(host, planned.cxx)
    if found.broken:
        return f"{planned.cxx}: {found.broken}"
    same = (found.family, found.version) == (planned.family, planned.version)
    name = f"{found.family} {found.version}, not {planned.family} {planned.version}"
    return "" if same else f"{planned.cxx} is {name}"


def _changed_toolkit(host: Host, planned: PlannedToolkit, compiler: PlannedCompiler) -> str:
    identity = identity_of(host, planned.nvcc)
    done = host.run([planned.nvcc, "--version"], identity=identity, as_built=True)
    version = parse_nvcc_version(done.stdout)
    if version != planned.version:
        return f"{planned.nvcc} is {version or 'broken'}, not {planned.version}"
    error = kernel_error(host, planned, compiler.cxx)
    return f"{planned.nvcc} does not compile a kernel any more: {error}" if error else ""
