"""Build environments: a Python with one release of torch, made once and kept in the cache, for
machines where the torch to build for is not installed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from packaging.version import InvalidVersion, Version

from deepbuild.errors import ProbeError, UsageError
from deepbuild.host import Host
from deepbuild.probe.answers import pip_errors
from deepbuild.probe.python import find_interpreter


@dataclass(frozen=True)
class BuildEnvironments:
    """The build environments in a folder."""

    folder: Path
    host: Host
    own_python: str
    note: Callable[[str], None]

    def get(self, python: str, torch: str) -> str:
        """The interpreter of the environment with this torch, made if it is not there yet.

        Args:
            python: the interpreter to base it on, "" for the active one.
            torch: a release, such as "2.14.1" or "2.14.1+cu130".

        Raises:
            UsageError: not a release number.
            ProbeError: pip cannot install it, or the disk is full.
        """
        version = _release(torch)
        base, _ = find_interpreter(self.host, python, self.own_python)
        folder = self.folder / f"{base.tag}-torch-{version}"
        executable = folder / "bin" / "python"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not (folder / "whole").exists():
                    self._make(folder, base.executable, version)
        except OSError as error:
            raise self._failed(folder, version, str(error)) from None
        return str(executable)

    def _make(self, folder: Path, base: str, torch: str) -> None:
        """Make it in place, since environments cannot be moved; `whole` is written last."""
        shutil.rmtree(folder, ignore_errors=True)
        self.note(f"making a build environment with torch {torch} in {folder} (once; some GB)")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        steps = (
            [base, "-m", "venv", str(folder)],
            [*pip, "install", "--no-compile", _requirement(torch), "numpy"],
        )
        try:
            for step in steps:
                done = self.host.run(step, timeout=7200)
                if not done.ok:
                    raise self._failed(folder, torch, pip_errors(done))
            (folder / "whole").write_text(torch, encoding="utf-8")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _failed(self, folder: Path, torch: str, found: str) -> ProbeError:
        return ProbeError(
            f"the build environment with torch {torch} cannot be made",
            found=found,
            wanted=f"torch {torch} installed in {folder}",
            hint="see which releases there are: pip index versions torch\n"
            "or name an environment that has it: --python /path/to/venv",
        )


def _release(torch: str) -> str:
    try:
        return str(Version(torch))
    except InvalidVersion:
        raise UsageError(
            f"--torch {torch} is no version", found=torch, wanted="a release such as 2.14.1"
        ) from None


def _requirement(torch: str) -> str:
    """
    >>> _requirement("2.14.1+cu130"), _requirement("2.14")
    ('torch==2.14.1+cu130', 'torch==2.14.*')
    """
    whole = len(Version(torch).release) > 2 or Version(torch).local
    return f"torch=={torch}" if whole else f"torch=={torch}.*"
