"""install(wheel, python) -> Verification: put a wheel into an environment, prove that it works, and
put the old state back if it does not. torch is never changed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from deepbuild import facts
from deepbuild.check import check_wheel, refuted, untrue
from deepbuild.check.environment import environment_of
from deepbuild.check.node_ops import Proving, op_checks
from deepbuild.check.node_record import look_around, make_record, write_record
from deepbuild.errors import InstallError, VerificationError
from deepbuild.fit import tag_problems, torch_problems
from deepbuild.host import Completed, Host, uninterrupted
from deepbuild.model import Check, Interpreter, Machine, Torch, Verification, replace
from deepbuild.probe.answers import pip_errors
from deepbuild.probe.system import find_package_manager
from deepbuild.wheel.contents import Contents, read_contents

# Variables that would send files elsewhere or nowhere, or show pip another environment.
ELSEWHERE = (
    *("PYTHONPATH", "PYTHONHOME", "PIP_DRY_RUN", "PIP_TARGET", "PIP_ROOT", "PIP_PREFIX"),
    *("PIP_USER", "PIP_NO_DEPS", "PIP_PYTHON", "PIP_IGNORE_INSTALLED"),
)


_LOST = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


@dataclass(frozen=True)
class Installer:
    """An environment to install into."""

    host: Host
    own_python: str
    python: Interpreter
    torch: Torch
    note: Callable[[str], None]
    locks: Path
    libc: str = ""

    @property
    def site(self) -> Path:
        return Path(self.python.site_packages)

    def install(self, wheel: Path, required: tuple[str, ...] = ()) -> Verification:
        """Install a wheel with its requirements, and verify every op in it.

        Args:
            required: ops that must be in it.

        Raises:
            UsageError: not a whole wheel of DeepSpeed.
            InstallError: it does not fit this environment, or pip failed; the old state is back.
            VerificationError: it was installed and does not work; the old state is back.
        """
        contents = read_contents(wheel)
        self._require_fit(wheel, contents, required)
        require_writable(self.python)
        self._require_true(wheel)
        with _as_install_error(self.python), self._alone(), self._transaction():
            self.note(f"installing {wheel.name}")
            self._pip_install(wheel, contents)
            self.note("verifying every op in a process of its own")
            verification = self.verify(wheel, contents)
            if not verification.passed:
                raise _refuted(verification, self.host)
            return self._written_down(verification, wheel, contents)

    # ------------------------------------------------------------ before

    def _require_fit(self, wheel: Path, contents: Contents, required: tuple[str, ...]) -> None:
        _require_ops(wheel, contents, required, self.python)
        wrong = tag_problems(wheel.name, self.python, self.libc)
        wrong += torch_problems(contents, self.torch)
        if self.python.externally_managed:
            wrong.append(f"{self.python.prefix} belongs to the distribution (externally managed)")
        if wrong:
            raise InstallError(
                f"{wheel.name} does not fit {self.python.executable}",
                found="\n".join(wrong),
                wanted=f"a wheel for {self.python.tag} and torch {self.torch.version}, "
                "and an environment of your own",
                hint="build one for it: deepbuild install --python "
                f"{self.python.executable}\nor make an environment: python3 -m venv DIR",
            )

    def _require_true(self, wheel: Path) -> None:
        """A wheel that is not what it says is refused before anything is changed."""
        torch = self.torch
        here = environment_of(self.host, self.python.executable, torch.version, torch.root)
        wrong = untrue(check_wheel(wheel, here))
        if wrong:
            raise InstallError(
                f"{wheel.name} is not what it says",
                found="\n".join(f"{check.name}: {check.evidence}" for check in wrong),
                wanted="a wheel as it was made, whose claims can be read back out of it",
                hint="nothing was changed; copy it again from where it was made, or build it again",
            )

    # ------------------------------------------------------------ pip

    def _pip(self, *args: str) -> Completed:
        front = pip_command(self.python, self.own_python)
        return self.host.run([*front, *args], timeout=3600)

    def _pip_install(self, wheel: Path, contents: Contents) -> None:
        with tempfile.TemporaryDirectory() as folder:
            constraints = Path(folder) / "constraints.txt"
            # The distribution may lack the local part that torch itself names ("+cu130").
            version = self.python.packages.get("torch", self.torch.version)
            constraints.write_text(f"torch=={version}\n", encoding="utf-8")
            if self.python.packages.get("deepspeed") == contents.version:
                done = self._pip("install", "--no-deps", "--force-reinstall", str(wheel))
                _require_ok(done, self.python)
            done = self._pip("install", "--constraint", str(constraints), str(wheel))
            _require_ok(done, self.python)

    # ------------------------------------------------------------ the old state

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One installation at a time in one environment: another one waits."""
        key = hashlib.sha256(self.python.prefix.encode()).hexdigest()[:16]
        self.locks.mkdir(parents=True, exist_ok=True)
        with FileLock(self.locks / f"install-{key}.lock"):
            self._require_restorable()
            yield

    def _require_restorable(self) -> None:
        """A DeepSpeed that was installed without a list of its files could not be put back."""
        there = (self.site / "deepspeed").exists() or (self.site / "deepspeed.egg-link").exists()
        if there and not list(self.site.glob("deepspeed-*.dist-info/RECORD")):
            raise InstallError(
                f"the DeepSpeed in {self.site} could not be put back if something failed",
                found="no RECORD of its files (an editable, egg or copied installation)",
                wanted="one that pip installed, or none",
                hint=f"remove it first: {self.python.executable} -m pip uninstall deepspeed",
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Bring the old state back if what is done inside fails or is interrupted: what was added
        is removed, and a DeepSpeed that was replaced returns file by file."""
        before = _distributions(self.host, self.python)
        with tempfile.TemporaryDirectory(prefix="deepbuild-") as folder:
            saved = self._save_deepspeed(Path(folder))
            try:
                yield
            except BaseException:
                with uninterrupted():
                    self.note("putting the old state back")
                    self._roll_back(before, Path(folder), saved)
                raise

    def _save_deepspeed(self, folder: Path) -> list[str]:
        saved: list[str] = []
        for record in self.site.glob("deepspeed-*.dist-info/RECORD"):
            for line in record.read_text(encoding="utf-8").splitlines():
                name = line.rsplit(",", 2)[0].strip('"')
                source = (self.site / name).resolve()
                if source.is_file():
                    copy = folder / str(len(saved))
                    shutil.copy2(source, copy)
                    saved.append(str(source))
        return saved

    def _roll_back(self, before: dict[str, str], folder: Path, saved: list[str]) -> None:
        after = _distributions(self.host, self.python)
        added = [name for name in after if name not in before or name == "deepspeed"]
        if added:
            self._pip("uninstall", "--yes", *added)
        for number, name in enumerate(saved):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / str(number), name)
        changed = [n for n, v in before.items() if n != "deepspeed" and after.get(n) != v]
        if changed:
            pins = [f"{name}=={before[name]}" for name in changed]
            self._pip("install", "--no-deps", *pins)

    # ------------------------------------------------------------ proof

    def verify(self, wheel: Path, contents: Contents) -> Verification:
        """Import DeepSpeed and every op of the wheel, each in a fresh process, and compute with
        those that can be compared with torch."""
        python, site = self.python.executable, str(self.site)
        proving = Proving(python, contents.accelerator, contents.version, site)
        checks = op_checks(self.host, proving, contents.installed_ops, self.note)
        return Verification(python, wheel.name, (self._torch_unchanged(), *checks))

    def _torch_unchanged(self) -> Check:
        text = self.host.read_text(f"{self.torch.root}/version.py") or ""
        same = f"'{self.torch.version}'" in text
        found = f"still {self.torch.version}" if same else f"no longer {self.torch.version}"
        return Check("torch unchanged", "passed" if same else "failed", found)

    def _written_down(
        self, verification: Verification, wheel: Path, contents: Contents
    ) -> Verification:
        """What was verified, and where, so that `check` can tell later what changed."""
        now = look_around(self.host, self.python, self.libc)
        record = make_record(
            self.host, now, deepspeed=contents.version, wheel=wheel, ops=contents.installed_ops
        )
        try:
            (listed,) = self.site.glob("deepspeed-*.dist-info/RECORD")
            write_record(listed.parent, record)
        except (OSError, ValueError) as error:  # it is verified all the same
            why = f"not written, so that no drift can be told later: {error}"
            told = Check("record of the node", "skipped", why)
        else:
            told = Check("record of the node", "passed", "`deepbuild check` tells what changes")
        return replace(verification, checks=(*verification.checks, told))


def _distributions(host: Host, python: Interpreter) -> dict[str, str]:
    """Installed distributions: name -> version."""
    found = {}
    for name in host.list_dir(python.site_packages):
        if name.endswith(".dist-info"):
            project, _, version = name[: -len(".dist-info")].partition("-")
            found[project] = version
    return found


def require_writable(python: Interpreter) -> None:
    """
    Raises:
        InstallError: nothing can be put there. pip would fall back to the user's own folder, which
            other environments see as well.
    """
    if not os.access(python.site_packages, os.W_OK):
        raise InstallError(
            f"cannot install into {python.prefix}",
            found=f"{python.site_packages} cannot be written",
            wanted="an environment that is yours to write",
            hint="nothing was changed; make one that sees the torch there:\n"
            f"{python.executable} -m venv --system-site-packages DIR, then --python DIR",
        )


def require_own(machine: Machine) -> None:
    """Before anything is fetched or built for it.

    Raises:
        InstallError: the environment belongs to the distribution, or cannot be written.
    """
    python = machine.python
    if python is None:
        return
    if python.externally_managed:
        raise InstallError(
            f"cannot install into {python.prefix}",
            found="it belongs to the distribution (externally managed)",
            wanted="an environment of your own",
            hint=f"{python.executable} -m venv DIR, then --python DIR",
        )
    require_writable(python)


@contextmanager
def undone_if_it_fails(
    host: Host, own_python: str, python: Interpreter, note: Callable[[str], None]
) -> Iterator[None]:
    """Remove again what was added to an environment, if what is done inside fails."""
    before = _distributions(host, python)
    try:
        yield
    except BaseException:
        added = [name for name in _distributions(host, python) if name not in before]
        if added:
            with uninterrupted():
                note(f"removing what was added: {', '.join(added)}")
                command = [*pip_command(python, own_python), "uninstall", "--yes", *added]
                host.run(command, timeout=3600)
        raise


def put_torch(host: Host, own_python: str, python: Interpreter, version: str) -> None:
    """Install a torch into an environment that has none.

    Raises:
        InstallError: pip failed.
    """
    command = [*pip_command(python, own_python), "install", f"torch=={version}"]
    _require_ok(host.run(command, timeout=7200), python)


def pip_command(python: Interpreter, own_python: str) -> list[str]:
    """How to start pip for an environment: its own, or, where it has none, deepbuild's from
    outside."""
    front = [python.executable, "-m", "pip"]
    if "pip" not in python.packages:
        front = [own_python, "-m", "pip", "--python", python.executable]
    clean = [word for name in ELSEWHERE for word in ("-u", name)]
    # A configuration file may say "user"; it would win over a variable that is not there.
    return ["env", *clean, "PIP_USER=0", *front, "--disable-pip-version-check", "--no-input"]


def _require_ok(done: Completed, python: Interpreter) -> None:
    if not done.ok:
        raise InstallError(
            f"pip could not install into {python.executable}",
            found=pip_errors(done),
            wanted="the wheel and its requirements installed, torch unchanged",
            hint="the old state is back; check the network and `pip config list`",
        )


@contextmanager
def _as_install_error(python: Interpreter) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise InstallError(
            f"cannot install into {python.prefix}",
            found=str(error),
            wanted="an environment, and a TMPDIR, that can be written",
            hint="the old state is back; see whose the folder is, and whether the disk is full",
        ) from None


def _require_ops(
    wheel: Path, contents: Contents, required: tuple[str, ...], python: Interpreter
) -> None:
    missing = [op for op in required if op not in contents.installed_ops]
    if missing:
        raise InstallError(
            f"{wheel.name} does not hold {', '.join(missing)}",
            found=", ".join(contents.installed_ops) or "no ops in it",
            wanted=", ".join(required),
            hint="build one that does: deepbuild install --python "
            f"{python.executable} --ops {','.join(required)}",
        )


def _advice(failed: list[Check], host: Host) -> str:
    """What to do, by what was seen to fail."""
    evidence = " ".join(check.evidence for check in failed)
    if "GLIBCXX" in evidence or "CXXABI" in evidence:
        return (
            "it was built with a newer C++ library than this Python loads:\n"
            "use an older g++ (--cxx), or a newer libstdc++ in the environment"
        )
    if "illegal instruction" in evidence:
        return "build it for this CPU: deepbuild install --cpu native, or --cpu x86-64-v2"
    lost = _LOST.search(evidence)
    if lost:
        return f"{lost[1]} is needed, and not here: {_package_of(lost[1], host)}"
    return "build for this machine: deepbuild install (without a wheel)"


def _package_of(soname: str, host: Host) -> str:
    """How to get a library, or how to do without."""
    need = soname.partition(".so")[0]
    manager, root = find_package_manager(host), host.is_root()
    command = facts.install_command(need, manager, root=root) or f"install what has {soname}"
    return f"{command}\nor take a wheel without the ops that need it (--ops)"


def _refuted(verification: Verification, host: Host) -> VerificationError:
    failed = refuted(verification)
    return VerificationError(
        "the installed DeepSpeed does not do what it should",
        found="\n".join(f"{check.name}: {check.evidence}" for check in failed),
        wanted="every op loads from the wheel and computes what torch computes",
        hint=f"the old state is back; {_advice(failed, host)}",
    )
