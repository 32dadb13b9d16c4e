"""The stages as the command line calls them: each reads what it needs, and hands a noun on.

What only one stage needs is imported there: a plan is to start in milliseconds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion

from deepbuild import cache, codec, model
from deepbuild.costs import Costs, forecast
from deepbuild.errors import BuildError, ProbeError, UsageError
from deepbuild.host import Host, LocalHost, write_atomically
from deepbuild.memo import MemoHost
from deepbuild.model import (
    BuildPlan,
    Check,
    Machine,
    Request,
    Source,
    Torch,
    Verification,
    Wheel,
)
from deepbuild.plan import accelerator_for, plan, require_torch
from deepbuild.probe import probe
from deepbuild.probe.resources import find_resources
from deepbuild.record import RecordingHost
from deepbuild.source import Store, Tree, inspect
from deepbuild.tell import Telling

if TYPE_CHECKING:
    from deepbuild.install import Installer
    from deepbuild.offering import Offer, Offering


@dataclass(frozen=True)
class Target:
    """What to build, and for what: the options that plan, wheel and install share."""

    deepspeed: str = ""
    python: str = ""
    torch: str = ""
    machine: str = ""


@dataclass(frozen=True)
class Running:
    """How a build is to be run: the seconds that it may take (0: any), where it is drawn, the
    compiler cache that it uses, and whether a bill of materials is written beside its wheel."""

    deadline: float = 0
    timeline: Path | None = None
    cache: str = "auto"
    sbom: bool = False


@dataclass(frozen=True)
class Stages:
    """A host, a cache, and a way to tell the user what is going on."""

    host: MemoHost
    cache: Path
    tell: Telling
    own_python: str = sys.executable

    @staticmethod
    def local(tell: Telling) -> Stages:
        """On this machine, with the user's cache.

        Raises:
            ProbeError: not Linux.
        """
        if not sys.platform.startswith("linux"):
            raise ProbeError(
                f"deepbuild does not work on {sys.platform}",
                found=sys.platform,
                wanted="Linux, where DeepSpeed's CUDA ops are built and run",
                hint="use it in WSL or in a container",
            )
        folder = cache.cache_folder(LocalHost().env())
        return Stages(MemoHost(folder / "evidence.json"), folder, tell)

    def probe(self, target: Target, request: Request = Request()) -> Machine:  # noqa: B008 (frozen)
        """Look at this machine, or read the recorded one that the target names."""
        if target.machine:
            return codec.load_file(Path(target.machine), Machine)
        python = self._build_python(target) if target.torch else target.python
        try:
            machine = self._look(self.host, python, request)
            if request.toolkit and self._assembled(machine, request):
                machine = self._look(self.host, python, request)
            return machine
        finally:
            self.host.save()

    def _assembled(self, machine: Machine, request: Request) -> bool:
        """Whether a toolkit had to be put together for what --toolkit asks."""
        from deepbuild import index
        from deepbuild.assemble import Toolkits

        config = functools.cache(lambda: index.read_config(self.host, self.own_python))

        def size_of(url: str) -> int:
            return index.size_of(config(), url)

        folder = self.cache / "toolkits"
        toolkits = Toolkits(folder, self.host, self.own_python, self.tell.note, size_of)
        return toolkits.get_for(machine, request)

    def record(self, target: Target, request: Request, folder: Path) -> Machine:
        """Probe, and write every answer down in `folder`: a bug report that can be replayed."""
        local = LocalHost()
        recorder = RecordingHost(local, local.secrets())
        machine = self._look(recorder, target.python, request)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "host.json", recorder.text())
            write_atomically(folder / "machine.json", recorder.masked(codec.dump(machine)))
        except OSError as error:
            raise UsageError(
                f"cannot write into {folder}", found=str(error), wanted="a writable folder"
            ) from None
        return machine

    def _look(
        self, host: Host, python: str, request: Request, *, toolchain: bool = True
    ) -> Machine:
        if toolchain and self.host.is_new:
            self.tell.note("trying what the compilers and toolkits here can do (once)")
        return probe(
            host,
            python=python,
            own_python=self.own_python,
            cuda_home=request.cuda_home,
            cxx=request.cxx,
            work_folder=str(self.cache),
            toolchain=toolchain,
        )

    def _build_python(self, target: Target) -> str:
        from deepbuild.buildenv import BuildEnvironments

        environments = BuildEnvironments(
            self.cache / "envs", self.host, self.own_python, self.tell.note
        )
        return environments.get(target.python, target.torch)

    def tree(self, spec: str) -> Tree:
        """The DeepSpeed tree of a --deepspeed SPEC, kept in the cache."""
        store = Store(self.cache / "sources", self.host, self.own_python, self.tell.note)
        return store.get(spec)

    def plan(self, target: Target, request: Request) -> BuildPlan:
        """Probe, get the source, decide."""
        machine = self.probe(target, request)
        _, torch = require_torch(machine)
        source = self._inspected(target.deepspeed, torch)
        try:
            return plan(machine, source, request)
        except (InvalidVersion, ValueError) as error:  # the former is one; numbers may be too long
            raise UsageError(
                f"{target.machine or 'this machine'} holds what is no version",
                found=str(error),
                wanted="versions and capabilities as deepbuild probe writes them",
                hint="probe it again: deepbuild probe -o FILE",
            ) from None

    def rehearse(self, planned: BuildPlan) -> tuple[Check, ...]:
        """Compile and link one small file of each kind as a plan's build would, and look at what
        the machine must have for it."""
        from deepbuild.build.rehearsal import Rehearsal

        machine = self.probe(Target(python=planned.python.executable))
        _, torch = require_torch(machine)
        source = self._inspected(planned.deepspeed.spec, torch)
        self.tell.note("trying the planned tools: one file of each kind, and a link")
        folder = self.cache / "sites"
        rehearsal = Rehearsal(planned, machine, torch, source.ops, self.host, folder)
        checks = tuple(rehearsal.checks())
        self.host.save()
        return checks

    def _inspected(self, spec: str, torch: Torch) -> Source:
        source = inspect(
            self.host,
            self.own_python,
            self.tree(spec),
            accelerator=accelerator_for(torch),
            torch=torch.version,
            cuda=torch.cuda,
        )
        self.host.save()
        return source

    def wheel(self, planned: BuildPlan, output: Path, running: Running = Running()) -> Wheel:
        """Build exactly what a plan says."""
        from deepbuild.build import Place, build, finished, require_unaltered, require_unblocked
        from deepbuild.build.rehearsal import require_rehearsed
        from deepbuild.build.still_there import require_still_there

        require_unaltered(planned)
        require_unblocked(planned)
        tree = self.tree(planned.deepspeed.spec)
        if tree.digest != planned.deepspeed.digest:
            raise BuildError(
                "the DeepSpeed source is not the one that was planned for",
                found=f"{tree.digest} of {tree.origin}",
                wanted=planned.deepspeed.digest,
                hint="make a new plan: deepbuild plan -o plan.json",
            )
        work, sites = self.work_folder(planned), self.cache / "sites"
        here = find_resources(self.host, str(self.cache)).memory
        memory = min(here, planned.memory or here)
        place = Place(
            work,
            output,
            sites,
            self.host.env(),
            memory,
            self.host,
            running.deadline,
            running.timeline,
            running.cache,
        )
        if finished(work, planned) is None:
            require_still_there(planned, LocalHost())  # what is remembered may be stale
            require_rehearsed(self.rehearse(planned))
        write_sbom = _sbom_writer() if running.sbom else None
        wheel = build(planned, Path(tree.path), place, self.tell)
        if write_sbom:
            self.tell.note(f"bill of materials: {write_sbom(Path(wheel.path))}")
        return wheel

    def last_log(self) -> Path:
        """The log of the build that was the last one to write.

        Raises:
            UsageError: nothing was built yet.
        """
        logs = [path for path in (self.cache / "builds").glob("*/build.log") if path.is_file()]
        if not logs:
            raise UsageError(
                "deepbuild has built nothing yet",
                found=f"no log in {self.cache / 'builds'}",
                wanted="a log of another tool's",
                hint="name it, or pipe it in: … 2>&1 | deepbuild explain -",
            )
        return max(logs, key=lambda path: path.stat().st_mtime)

    def forecast(self, planned: BuildPlan) -> str:
        """What a plan's build will probably take, in words; "" for one that compiles nothing."""
        if not planned.built_ops():
            return ""
        return forecast(planned, Costs(self.cache / "sites" / "costs.json")).words()

    @staticmethod
    def require_here(target: Target) -> None:
        """
        Raises:
            UsageError: the machine to build on is recorded, so it is another one.
        """
        if target.machine:
            raise UsageError(
                "a recorded machine can be planned for, not built on",
                found=f"--machine {target.machine}",
                wanted="a plan that is taken to that machine",
                hint=f"deepbuild plan --machine {target.machine} -o plan.json\n"
                "then, there: deepbuild wheel plan.json",
            )

    def work_folder(self, planned: BuildPlan) -> Path:
        """Where a plan's build works. The wheel's name tells builds apart that differ in content;
        it is kept, so that a build goes on where it stopped."""
        return self.cache / "builds" / planned.wheel.removesuffix(".whl")

    def install(
        self,
        target: Target,
        request: Request,
        given: Path | None,
        running: Running = Running(),
        offer: Offer | None = None,
    ) -> Verification:
        """Install a wheel given, or that of a plan given, or one that is offered, or build one for
        this machine."""
        from deepbuild.install import require_own
        from deepbuild.torches import no_torch_for, require_asked

        planned = self._read_given(given)
        if planned and not target.python:
            target = replace(target, python=planned.python.executable)
        machine = self._environment(target)
        require_own(machine)
        if target.torch and machine.torch is None:
            machine = self._with_torch(machine, target)
        require_asked(machine, target.torch)
        named = (op for op in request.ops if op not in {"auto", "all", "none"})
        required = tuple(op for op in named if op not in request.allow_missing)
        choice = None
        if offer:
            offering = self._offering(offer, target)
            choice, done = offering.install(machine, request, target.deepspeed, required)
            if done:
                return done
        if machine.torch is None and given and planned is None:
            raise no_torch_for(given, machine)
        python, _ = require_torch(machine)
        wheel = given
        if wheel is None or planned:
            here = replace(target, torch="", python=python.executable)
            planned = planned or self.plan(here, request)
            wheel = Path(self.wheel(planned, self.cache / "wheels", running).path)
        verification = self._installer(machine).install(wheel, required)
        return model.replace(verification, choice=choice)

    def _offering(self, offer: Offer, target: Target) -> Offering:
        from deepbuild.offering import Offering

        folder, note = self.cache / "fetched", self.tell.note

        def look() -> Machine:
            return self._environment(target)

        return Offering(offer, self.host, self.own_python, folder, note, look, self._installer)

    def _installer(self, machine: Machine) -> Installer:
        from deepbuild.install import Installer

        python, torch = require_torch(machine)
        told = self.tell.note, machine.system.libc
        return Installer(self.host, self.own_python, python, torch, *told)

    def check(self, target: Target, wheel: Path) -> Verification:
        """What can be told of a wheel without running what is in it."""
        from deepbuild.check import check_wheel
        from deepbuild.check.environment import environment_of

        machine = self._environment(target)
        if machine.python is None or machine.torch is None:
            return check_wheel(wheel, None)
        torch, python = machine.torch, machine.python.executable
        return check_wheel(wheel, environment_of(self.host, python, torch.version, torch.root))

    def check_installed(self, target: Target, *, quick: bool) -> Verification:
        """What can be told of the DeepSpeed that is installed in an environment.

        Args:
            quick: load no op, and do not run torch.
        """
        from deepbuild.check.node import check_node
        from deepbuild.probe.python import find_interpreter

        try:
            python, libc = find_interpreter(self.host, target.python, self.own_python)
            return check_node(self.host, python, libc, self.tell.note, quick=quick)
        finally:
            self.host.save()

    def _read_given(self, given: Path | None) -> BuildPlan | None:
        """The plan in a file given, None for a wheel; read first, so that a bad file is what the
        user hears of."""
        from deepbuild.wheel.contents import read_contents

        if given is None:
            return None
        if given.suffix == ".json":
            return codec.load_file(given, BuildPlan)
        read_contents(given)
        return None

    def _environment(self, target: Target) -> Machine:
        """Where a wheel is to be installed: no compiler is needed for that."""
        try:
            return self._look(self.host, target.python, Request(), toolchain=False)
        finally:
            self.host.save()

    def _with_torch(self, machine: Machine, target: Target) -> Machine:
        """Install the torch that was asked for where there is none."""
        from deepbuild.install import put_torch

        assert machine.python is not None
        self.tell.note(f"installing torch {target.torch} into {machine.python.prefix}")
        put_torch(self.host, self.own_python, machine.python, target.torch, self.tell.note)
        return self._environment(target)


def _sbom_writer() -> Callable[[Path], Path]:
    """Found before a build, since it may lack its library."""
    from deepbuild.sbom import write_sbom

    return write_sbom
