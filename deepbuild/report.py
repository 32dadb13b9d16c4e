"""Nouns as a person reads them. Returns what to show; the CLI prints it."""

from __future__ import annotations

from shlex import quote

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from deepbuild.facts import code_of
from deepbuild.model import (
    Blocker,
    BuildPlan,
    Check,
    Decision,
    Index,
    Machine,
    PlannedOp,
    Trial,
    Verification,
    Wheel,
)

_NOT_ASKED = "not asked for"
_VERDICT_STYLE = {"build": "green", "skip": "dim", "blocked": "bold red"}
_STATUS = {
    "passed": ("green", "passed"),
    "failed": ("bold red", "FAILED"),
    "skipped": ("yellow", "skipped"),
}


def plan_report(
    plan: BuildPlan, work: str, forecast: str = "", checks: tuple[Check, ...] = ()
) -> RenderableType:
    """A plan: decisions with reasons, ops, environment, warnings, blockers, result, and how trials
    of it went."""
    title = Text.assemble(
        ("deepbuild plan ", "bold"),
        (plan.id, "bold cyan"),
        f"   DeepSpeed {plan.deepspeed.version} for torch {plan.torch.version}",
        f", accelerator {plan.accelerator}",
    )
    parts: list[RenderableType] = [title, Text(), _decisions(plan.decisions)]
    parts += [_heading("Ops"), _ops(plan.ops)]
    parts += [
        _heading("Environment of the build"),
        _env(plan),
        _whole(f"  {{work}} is {work}", "dim"),
    ]
    if plan.warnings:
        parts += [_heading("Mind"), *(_bullet(text, "yellow") for text in plan.warnings)]
    if plan.blockers:
        parts += [_heading("Blocked: nothing is built until this is removed", "bold red")]
        parts += [_blocker(blocker) for blocker in plan.blockers]
    else:
        parts += [_heading("Result"), _whole(f"  {plan.wheel}", "bold")]
        parts += [Text(f"  {forecast}", "dim")] if forecast else []
    if checks:
        parts += [_heading("Tried"), _checks(checks)]
    return Group(*parts)


def _heading(text: str, style: str = "bold") -> RenderableType:
    return Padding(Text(text, style), (1, 0, 0, 0))


def _whole(text: str, style: str) -> Text:
    """A line that people copy: never wrapped."""
    return Text(text, style, no_wrap=True, overflow="ignore")


def _bullet(text: str, style: str) -> RenderableType:
    row = _grid(2)
    row.add_row(Text("  !", style), text)
    return row


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2), expand=False)
    for _ in range(columns):
        table.add_column(overflow="fold")
    return table


def _decisions(decisions: tuple[Decision, ...]) -> RenderableType:
    table = _grid(3)
    for each in decisions:
        table.add_row(Text(f"  {each.topic}", "bold"), Text(each.value, "cyan"), each.reason)
        for rejected in each.rejected:
            why = Text(f"not {rejected.value}: {rejected.reason}", "dim")
            table.add_row("", "", why)
    return table


def _ops(ops: tuple[PlannedOp, ...]) -> RenderableType:
    table = _grid(3)
    shown = [op for op in ops if op.reason != _NOT_ASKED]
    for op in shown:
        style = _VERDICT_STYLE[op.verdict]
        table.add_row(Text(f"  {op.name}", "bold"), Text(op.verdict, style), op.reason)
    rest = [op.name for op in ops if op not in shown]
    if not rest:
        return table
    return Group(table, Padding(Text(f"not asked for: {', '.join(rest)}", "dim"), (0, 2)))


def _env(plan: BuildPlan) -> RenderableType:
    table = _grid(2)
    shown = {n: v for n, v in plan.env.items() if not v.reason.endswith(_NOT_ASKED)}
    for name, variable in shown.items():
        value = Text.assemble((variable.value, "cyan"), "   ", (variable.reason, "dim"))
        table.add_row(Text(f"  {name}", "bold"), value)
    hidden = len(plan.env) - len(shown)
    if hidden:
        text = Text.assemble(("0", "cyan"), "   ", (f"the {hidden} ops not asked for", "dim"))
        table.add_row(Text("  DS_BUILD_...", "bold"), text)
    return table


def _blocker(blocker: Blocker) -> RenderableType:
    table = _grid(2)
    table.add_row(Text("  found", "red"), blocker.found)
    table.add_row(Text("  wanted", "bold"), blocker.wanted)
    table.add_row(Text("  to do", "green"), blocker.fix)
    table.add_row(Text("  more", "dim"), f"deepbuild explain {code_of(blocker.code)}")
    return Padding(table, (0, 0, 1, 0))


def machine_report(machine: Machine) -> RenderableType:
    """A machine: what was found, where, and what is broken."""
    table = _grid(2)
    rows = [
        *_system_rows(machine),
        *_gpu_rows(machine),
        *_toolkit_rows(machine),
        *_compiler_rows(machine),
        *(("not usable", f"{problem.subject}: {problem.found}") for problem in machine.problems),
        *_shell_rows(machine),
    ]
    last = ""
    for name, value in rows:
        table.add_row(Text(f"  {name}" if name != last else "", "bold"), value)
        last = name
    return Group(Text("deepbuild probe", "bold"), Text(), table)


def _system_rows(machine: Machine) -> list[tuple[str, str]]:
    system, here, cpu = machine.system, machine.resources, machine.cpu
    rows = [
        ("system", f"{system.name}, {system.arch}, {system.libc}"),
        ("CPU", f"{cpu.model}: {cpu.name} (level {cpu.level})"),
        ("cores", f"{here.cores} ({here.cores_from})"),
        ("memory", f"{here.memory / 2**30:.1f} GiB ({here.memory_from})"),
        ("disk", f"{here.disk_free / 2**30:.1f} GiB free for the cache"),
    ]
    if machine.python:
        python = machine.python
        rows.append(("Python", f"{python.version} at {python.executable} ({python.found_by})"))
    if machine.torch:
        torch = machine.torch
        cuda = f"CUDA {torch.cuda}" if torch.cuda else "no CUDA"
        cuda = f"for ROCm {torch.hip}" if torch.hip else cuda
        rows.append(("torch", f"{torch.version}, {cuda}, {' '.join(torch.arches)}"))
    else:
        rows.append(("torch", "none in " + ", ".join(machine.torch_looked_for)))
    tools = machine.tools
    rows.append(("ninja, git", f"{tools.ninja or 'none'}, {tools.git or 'none'}"))
    for name, found in machine.headers.items():
        told = [f"{each.folder}{f' ({each.version})' if each.version else ''}" for each in found]
        rows.append((name, ", ".join(told)))
    if machine.modules:
        rows.append(("modules", ", ".join(machine.modules)))
    return rows


def _gpu_rows(machine: Machine) -> list[tuple[str, str]]:
    gpus = machine.gpus
    rows = [
        (
            "GPU",
            f"{gpu.index}: {gpu.name}, {gpu.capability or 'capability unknown'}"
            + ("" if gpu.visible else " (hidden by CUDA_VISIBLE_DEVICES)"),
        )
        for gpu in gpus.devices
    ]
    rows = rows or [("GPU", "none: " + "; ".join(gpus.tried))]
    if gpus.driver:
        newest = f", CUDA up to {gpus.driver_cuda}" if gpus.driver_cuda else ""
        rows.append(("driver", f"{gpus.driver}{newest} ({gpus.answered_by})"))
    if gpus.visible_devices is not None:
        rows.append(("driver", f"CUDA_VISIBLE_DEVICES={gpus.visible_devices}"))
    return rows


def _toolkit_rows(machine: Machine) -> list[tuple[str, str]]:
    rows = []
    for kit in machine.toolkits:
        lacks = f"; lacks {', '.join(kit.missing)}" if kit.missing else ""
        most = f", gcc up to {kit.gcc_max}" if kit.gcc_max else ""
        kind = "" if kit.kind == "toolkit" else f" ({kit.kind})"
        rows.append(("toolkit", f"CUDA {kit.version} at {kit.home}{kind}{most}{lacks}"))
        rows += [("toolkit", f"  {_kit_trial(trial)}") for trial in kit.trials]
        rows.append(("toolkit", f"  arches {' '.join(kit.arches) or 'unknown'}"))
    return rows or [("toolkit", "none")]


def _kit_trial(trial: Trial) -> str:
    how = "compiles a kernel" if not trial.error else f"does not compile a kernel: {trial.error}"
    return f"with {trial.cxx} it {how}"


def _shell_rows(machine: Machine) -> list[tuple[str, str]]:
    """What the shell says; a build by deepbuild uses the plan's variables in any case."""
    marks = {True: "", False: "misleading: "}
    return [("shell", f"{each.subject}: {marks[each.ok]}{each.found}") for each in machine.shell]


def _compiler_rows(machine: Machine) -> list[tuple[str, str]]:
    rows = [
        (
            "compiler",
            f"{each.family} {each.version} at {each.cxx}"
            + (f" ({each.broken})" if each.broken else f", C++{each.cxx_std}" * bool(each.cxx_std))
            + (f", without {' and '.join(each.lacks)}" if each.lacks else ""),
        )
        for each in machine.compilers
    ]
    return rows or [("compiler", "none")]


def wheel_report(wheel: Wheel) -> RenderableType:
    """A finished wheel: what is in it, as read back from it."""
    table = _grid(4)
    for op in wheel.ops:
        sass = "SASS " + " ".join(op.sass) if op.sass else "no device code"
        ptx = f", PTX {' '.join(op.ptx)}" if op.ptx else ""
        size = f"{op.size / 2**20:.2f} MB"
        folder = op.library.rpartition("/")[0]
        table.add_row(Text(f"  {op.name}", "bold"), size, sass + ptx, Text(folder, "dim"))
    facts = (
        f"  {wheel.size / 2**20:.2f} MB, accelerator {wheel.accelerator}, "
        f"built in {wheel.seconds:.0f} s, sha256 {wheel.sha256}"
    )
    parts: list[RenderableType] = [_whole(wheel.path, "bold green"), _whole(facts, ""), table]
    if wheel.missing:
        parts.append(Text(f"  missing: {', '.join(wheel.missing)}", "bold red"))
    return Group(*parts, _whole(f"  log: {wheel.log}", "dim"))


def index_report(index: Index) -> RenderableType:
    """A package index: what is in it, how it is used, and what was left out."""
    projects = sorted({wheel.project for wheel in index.wheels})
    told = sum(wheel.manifest for wheel in index.wheels)
    count = f"{len(index.wheels)} wheel{'s' * (len(index.wheels) > 1)}"
    some = ", ".join(projects[:4]) + ", …" * (len(projects) > 4)
    name = "deepspeed" if "deepspeed" in projects else projects[0]
    use = [f"  {tool} install --index-url {index.url} {name}" for tool in ("pip", "uv pip")]
    parts: list[RenderableType] = [
        _whole(index.folder, "bold green"),
        Text(f"  an index of {count} of {some}; {told} with deepbuild's manifest"),
        *(_whole(line, "cyan") for line in use),
        Text("  what a wheel requires comes from your own index: --extra-index-url", "dim"),
        _whole(f"  for other machines: python -m http.server -d {quote(index.folder)}", "dim"),
        _whole("  and there --index-url http://HOST:8000/simple/ (or any web server)", "dim"),
    ]
    left_out = (f"{each.name} is left out: {each.reason}" for each in index.skipped)
    return Group(*parts, *(_bullet(line, "yellow") for line in left_out))


def verification_report(verification: Verification, subject: str = "") -> RenderableType:
    """A verification table: one line a check, with its evidence. The subject is a DeepSpeed that is
    installed, unless told."""
    subject = subject or f"DeepSpeed in {verification.python}"
    table = _checks(verification.checks)
    skipped = [check.name for check in verification.checks if check.status == "skipped"]
    unproved = Text(f"not proved here: {', '.join(skipped)}" if skipped else "", "yellow")
    parts = [table, Text(), _summary(verification.checks), unproved, *_to_do(verification.checks)]
    return Group(Text(f"verification of {subject}", "bold"), *parts)


def _checks(checks: tuple[Check, ...]) -> RenderableType:
    table = _grid(3)
    for check in checks:
        style, word = _STATUS[check.status]
        table.add_row(Text(f"  {check.name}", "bold"), Text(word, style), check.evidence)
    return table


def _to_do(checks: tuple[Check, ...]) -> list[RenderableType]:
    """The commands that help, each once, with what it helps."""
    wanted: dict[str, list[str]] = {}
    for check in checks:
        if check.to_do:
            wanted.setdefault(check.to_do, []).append(check.name)
    lines = [_whole(f"  {', '.join(names)}: {way}", "cyan") for way, names in wanted.items()]
    return [Text("to do:", "bold"), *lines] if lines else []


def _summary(checks: tuple[Check, ...]) -> Text:
    counts = {status: sum(check.status == status for check in checks) for status in _STATUS}
    style = "bold red" if counts["failed"] else "bold green"
    return Text(
        ", ".join(f"{number} {status}" for status, number in counts.items() if number), style
    )
