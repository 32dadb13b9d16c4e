"""What changed around an installed DeepSpeed: against what its ops were built for (manifest, or
what DeepSpeed itself wrote down), and against what was there when it was verified (`NodeRecord`).

"failed" is what its ops do not stand; "passed" what is as it was, or was proved anew in the same
check; "skipped" what changed and is not proved, or of which nothing is known."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from deepbuild.check.archive import verdict
from deepbuild.check.libraries import what_lacks
from deepbuild.check.node_files import with_way
from deepbuild.check.node_installed import Installed
from deepbuild.facts.cpu_features import CPU_LEVELS
from deepbuild.fit import libc_problems, tag_problems, too_new_for, torch_problems
from deepbuild.model import BuiltOp, Check, Cpu, Machine, NodeRecord, replace
from deepbuild.plan.cpu import runs_code_for
from deepbuild.wheel.platform import newest_versions


class Drift(msgspec.Struct, frozen=True):
    """An installation, and what is around it now. `name` is the machine's; `quick` says that no op
    is loaded in this check."""

    installed: Installed
    now: Machine
    name: str
    quick: bool

    @property
    def then(self) -> NodeRecord | None:
        return self.installed.record

    @property
    def same_node(self) -> bool:
        """A record that lies on a shared disk may be another machine's."""
        return self.then is not None and self.then.name == self.name

    @property
    def rebuild(self) -> str:
        return f"deepbuild install{self.installed.here}"


class Fact(msgspec.Struct, frozen=True):
    """One thing that an installation depends on: what it was at the time of the record (None where
    that is not known), and what it is. `by_loading` says that loading the ops proves it anew."""

    name: str
    was: str | None
    now: str
    by_loading: bool = True


def told(drift: Drift, fact: Fact, problems: list[str], way: str, fits: str = "") -> Check:
    """
    Args:
        problems: what its ops do not stand in what is there now.
        way: what to do then.
        fits: why what is there now does, "" where that is not known.
    """
    name, was, now = fact.name, fact.was, fact.now
    if problems:
        known = "" if was in {None, now} else f"was {was}; "
        failed = verdict(name, problems, "")
        return with_way(replace(failed, evidence=known + failed.evidence), way)
    if was is None:
        text = f"{now}: {fits}" if fits else f"{now}; how it was is not known"
        return Check(name, "passed" if fits else "skipped", text)
    if was == now:
        return Check(name, "passed", f"still {now}")
    return _changed(drift, fact, f"was {was}, is {now}" + (f": {fits}" if fits else ""))


def _changed(drift: Drift, fact: Fact, text: str) -> Check:
    if drift.quick:
        prove = f"deepbuild check{drift.installed.here}"
        return Check(fact.name, "skipped", f"{text}; not proved yet", prove)
    if fact.by_loading:
        return Check(fact.name, "passed", f"{text}; its ops are proved anew below")
    return Check(fact.name, "skipped", f"{text}; what its GPU ops compute is told below")


def drift_checks(drift: Drift) -> Iterator[Check]:
    yield from known(drift)
    yield version(drift)
    yield torch(drift)
    yield python(drift)
    if drift.installed.contents.installed_ops:
        yield libc(drift)
        yield cpu(drift)


def known(drift: Drift) -> Iterator[Check]:
    """What there is to compare with."""
    installed, then = drift.installed, drift.then
    if installed.manifest:
        yield Check("manifest", "passed", f"by deepbuild {installed.manifest.deepbuild}")
    else:
        why = f"{installed.no_manifest}: what its ops were built for is known only in part"
        yield Check("manifest", "skipped", why)
    if then:
        yield Check("record of the node", "passed", f"verified {then.verified} on {then.name}")
    else:
        why = f"{installed.no_record}: `deepbuild install` writes it when it has verified a wheel"
        yield Check("record of the node", "skipped", f"{why}; how the node was is not known")


def version(drift: Drift) -> Check:
    installed, then = drift.installed, drift.then
    here = installed.contents.version
    problems = [installed.broken] if installed.broken else []
    problems += [f"{name} lies beside {installed.home.name}" for name in installed.more]
    claimed = installed.contents.told
    if claimed and claimed != here:
        problems.append(f"its files are those of {claimed}, its dist-info says {here}")
    fits, way = "its files and its dist-info agree", installed.back
    if installed.more:
        way = f"{installed.python.executable} -m pip uninstall --yes deepspeed && {way}"
    was = then.deepspeed if then else None
    if was not in {None, here}:
        problems.append(f"is {here}: another one than was verified")
    return told(drift, Fact("DeepSpeed", was, here), problems, way, fits)


def torch(drift: Drift) -> Check:
    installed, then, now = drift.installed, drift.then, drift.now.torch
    contents, python = installed.contents, installed.python.executable
    was = _torch_words(then.torch, then.cuda) if then else None
    minor = str(contents.torch_info.get("version", ""))
    pin = then.torch.partition("+")[0] if then else f"{minor}.*"
    wanted = f"torch=={pin}" if then or minor else "torch"
    way = f"{python} -m pip install '{wanted}'; or, for the torch here: {drift.rebuild}"
    if now is None:
        return told(drift, Fact("torch", was, "none"), ["there is none"], way)
    here = _torch_words(now.version, now.cuda)
    problems = torch_problems(contents, now)
    problems = [f"is {here}: {each}" for each in problems]
    fits = f"its ops are for torch {minor}" if contents.installed_ops and minor else ""
    return told(drift, Fact("torch", was, here), problems, way, fits)


def _torch_words(torch: str, cuda: str | None) -> str:
    return f"{torch} ({f'CUDA {cuda}' if cuda else 'no CUDA'})"


def python(drift: Drift) -> Check:
    installed, then = drift.installed, drift.then
    here = installed.python
    found = [tag_problems(f"deepspeed-0-{tag}.whl", here, "") for tag in installed.tags]
    problems = min(found, key=len, default=[])
    fits = f"it is for {', '.join(installed.tags)}" if installed.tags else ""
    was = then.python if then else None
    return told(drift, Fact("Python", was, here.version), problems, drift.rebuild, fits)


def libc(drift: Drift) -> Check:
    """The C library that ops want: by their symbol versions, else by the wheel's tag."""
    installed, then, here = drift.installed, drift.then, drift.now.system.libc
    ops = installed.manifest.ops if installed.manifest else ()
    wanted = newest_versions(ops).get("GLIBC", "")
    platforms = [tag.rpartition("-")[2] for tag in installed.tags]
    found = [too_new_for(platform, here) for platform in platforms]
    problems = libc_problems(wanted, here) if wanted else min(found, key=len, default=[])
    many = any(platform.startswith("manylinux") for platform in platforms)
    fits = f"its ops want {wanted}" if wanted else "its tag asks for no newer one" if many else ""
    was = then.libc if then else None
    return told(drift, Fact("C library", was, here), problems, drift.rebuild, fits)


def cpu(drift: Drift) -> Check:
    installed, then = drift.installed, drift.then
    name = _cpu_words(drift.now.cpu)
    was = _cpu_words(then.cpu) if then else None
    if installed.manifest is None:
        return told(drift, Fact("CPU", was, name), [], drift.rebuild)
    plan = installed.manifest.plan
    lacking = {op.name: _lacks(name, op, plan.cpu) for op in installed.manifest.ops}
    problems = [
        f"{name} lacks {', '.join(found)}, which {op} uses"
        for op, found in lacking.items()
        if found
    ]
    unknown = any(found is None for found in lacking.values())
    fits = "" if unknown else f"runs its code for {plan.cpu}"
    return told(drift, Fact("CPU", was, name), problems, drift.rebuild, fits)


def _cpu_words(cpu: Cpu) -> str:
    return cpu.name or cpu.level or "unknown"


def _lacks(here: str, op: BuiltOp, level: str) -> list[str] | None:
    """What this CPU lacks for an op: by its instructions, else by what it was built for."""
    if op.cpu:
        plain = op.cpu == CPU_LEVELS[0] and not op.cpu_beyond
        return [] if plain else what_lacks(here, op)
    runs = runs_code_for(here, level)
    return None if runs is None else [] if runs else [level]
