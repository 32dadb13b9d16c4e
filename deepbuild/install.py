"""install(wheel, python) -> Verification: put a wheel into an environment, prove that it works, and
put the old state back if it does not. torch is never changed."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from deepbuild import facts
from deepbuild.check import check_wheel, refuted, untrue
from deepbuild.check.environment import environment_of
from deepbuild.check.node_ops import Proving, op_checks
from deepbuild.check.node_record import look_around, make_record, write_record
from deepbuild.errors import InstallError, VerificationError
from deepbuild.fit import tag_problems, torch_problems
from deepbuild.host import Completed, Host
from deepbuild.model import Check, Interpreter, Machine, Torch, Verification, replace
from deepbuild.probe.answers import pip_errors
from deepbuild.probe.system import find_package_manager
from deepbuild.undo import held, undone_if_it_fails
from deepbuild.wheel.contents import Contents, read_contents

# Variables that would send files elsewhere or nowhere, or show pip another environment.
ELSEWHERE = (
    *("PYTHONPATH", "PYTHONHOME", "PIP_DRY_RUN", "PIP_TARGET", "PIP_ROOT", "PIP_PREFIX"),
    *("PIP_USER", "PIP_NO_DEPS", "PIP_PYTHON", "PIP_IGNORE_INSTALLED"),
)


# Settings of pip that send files elsewhere, or nowhere (`pip config list`).
_ELSEWHERE_SET = re.compile(
    r"(?:global|install)\.(?:target|prefix|root|dry-run|no-deps|python|ignore-installed)="
    r"(?!'(?:0|false|no|off|)'$)",
    re.IGNORECASE,
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
        self._require_plain_pip()
        with _as_install_error(self.python), undone_if_it_fails(self.python, self.note):
            self._require_restorable()
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
        command = [*pip_command(self.host, self.python, self.own_python), *args]
        return self.host.run(command, timeout=3600)

    def _held_pip(self, *args: str) -> Completed:
        command = [*pip_command(self.host, self.python, self.own_python), *args]
        return self.host.run(held(self.own_python, self.python, command), timeout=3600)

    def _pip_install(self, wheel: Path, contents: Contents) -> None:
        with tempfile.TemporaryDirectory() as folder:
            constraints = Path(folder) / "constraints.txt"
            # The distribution may lack the local part that torch itself names ("+cu130").
            version = self.python.packages.get("torch", self.torch.version)
            constraints.write_text(f"torch=={version}\n", encoding="utf-8")
            if self.python.packages.get("deepspeed") == contents.version:
                done = self._held_pip("install", "--no-deps", "--force-reinstall", str(wheel))
                _require_ok(done, self.python)
            done = self._held_pip("install", "--constraint", str(constraints), str(wheel))
            _require_ok(done, self.python)

    def _require_restorable(self) -> None:
        """Over a DeepSpeed without a list of its files pip would put the new one, and leave what
        the new one has not."""
        there = [self.site / name for name in ("deepspeed", "deepspeed.egg-link")]
        there += self.site.glob("[dD]eep[sS]peed-*-info")
        found = [str(path) for path in there if path.exists()]
        if found and not list(self.site.glob("deepspeed-*.dist-info/RECORD")):
            raise InstallError(
                f"the DeepSpeed in {self.site} cannot be replaced",
                found="no RECORD of its files (an editable, egg or copied installation)",
                wanted="one that pip installed, or none",
                hint=f"remove it first: rm -r {' '.join(map(quote, found))}",
            )

    def _require_plain_pip(self) -> None:
        """A configuration file may send files elsewhere, and no variable takes that back."""
        done = self._pip("config", "list")
        found = [line for line in done.stdout.splitlines() if _ELSEWHERE_SET.match(line)]
        if found:
            raise InstallError(
                f"pip is set up not to install into {self.python.prefix}",
                found="\n".join(found),
                wanted="a configuration that only names indexes",
                hint=f"{self.python.executable} -m pip config debug   # names the file to change",
            )

    # ------------------------------------------------------------ proof

    def verify(self, wheel: Path, contents: Contents) -> Verification:
        """Import DeepSpeed and every op of the wheel, each in a fresh process, and compute with
        those that can be compared with torch."""
        python, site = self.python.executable, str(self.site)
        proving = Proving(python, contents.accelerator, contents.version, site)
        checks = op_checks(self.host, proving, contents.installed_ops, self.note)
        return Verification(python, wheel.name, (self._torch_unchanged(), self._one(), *checks))

    def _one(self) -> Check:
        """pip leaves a second one behind where it was stopped, and Python reads either."""
        infos = [path.name for path in self.site.glob("*eepspeed-*.dist-info")]
        left = [path.name for path in self.site.glob("~eepspeed*")]
        if len(infos) == 1 and not left:
            return Check("one DeepSpeed", "passed", infos[0])
        return Check("one DeepSpeed", "failed", ", ".join(sorted({*infos, *left})))

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


def put_torch(
    host: Host, own_python: str, python: Interpreter, version: str, note: Callable[[str], None]
) -> None:
    """Install a torch into an environment that has none, whole or not at all.

    Raises:
        InstallError: pip failed.
    """
    command = held(own_python, python, pip_command(host, python, own_python))
    with _as_install_error(python), undone_if_it_fails(python, note):
        _require_ok(host.run([*command, "install", f"torch=={version}"], timeout=7200), python)


def pip_command(host: Host, python: Interpreter, own_python: str) -> list[str]:
    """How to start pip for an environment: its own, or, where it has none, deepbuild's from
    outside."""
    front = [python.executable, "-m", "pip"]
    if "pip" not in python.packages:
        front = [own_python, "-m", "pip", "--python", python.executable]
    clean = [word for name in ELSEWHERE for word in ("-u", name)]
    # A configuration file may say "user"; it would win over a variable that is not there.
    env = [host.which("env") or "/usr/bin/env", *clean, "PIP_USER=0"]
    return [*env, *front, "--disable-pip-version-check", "--no-input"]


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
