"""A CUDA toolkit without root: put together from package-index wheels, once, and kept in the cache.

From CUDA 13 on NVIDIA publishes nvcc and all its parts as wheels, under one metapackage that pins
them to each other (cuda-toolkit). The math libraries' headers are mostly in torch's environment.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from filelock import FileLock

from deepbuild import facts
from deepbuild.addresses import without_secrets
from deepbuild.errors import ProbeError, UsageError
from deepbuild.host import Host
from deepbuild.install import ELSEWHERE
from deepbuild.model import Machine, Request
from deepbuild.plan import has_toolkit, require_torch
from deepbuild.plan.toolkits import own_packs
from deepbuild.probe.answers import pip_errors

_COMPILER = ("nvcc", "nvvm", "crt", "cccl", "cudart", "nvtx", "profiler")
_LIBRARIES = ("cublas", "cusparse", "cusolver", "curand", "cufile", "nvrtc")
_MUST_BE_THERE = ("bin/nvcc",)
_SCHEMES = ("https://", "http://")


@dataclass(frozen=True)
class Toolkits:
    """The assembled toolkits in a folder; `size_of` asks an index for the bytes of a file."""

    folder: Path
    host: Host
    own_python: str
    note: Callable[[str], None]
    size_of: Callable[[str], int]

    def get_for(self, machine: Machine, request: Request) -> bool:
        """Assemble what --toolkit asks for, if it is not on the machine and would be used if it
        were. Where torch's environment holds the math libraries, only the compiler is fetched.

        Returns:
            Whether there is another toolkit now.
        """
        if has_toolkit(machine, request):
            return False
        _, torch = require_torch(machine)
        own = torch.cuda or ""
        asked = own if request.toolkit == "auto" else request.toolkit
        same = asked.partition(".")[0] == own.partition(".")[0]
        if not (same or request.allow_cuda_mismatch):
            return False
        held = {header for pack in own_packs(torch) for header in pack.headers}
        self.get(asked, libraries="cusparse.h" not in held)
        return True

    def get(self, cuda: str, *, libraries: bool) -> None:
        """Assemble the toolkit of a CUDA version, unless it is there already.

        Args:
            cuda: such as "13.0".
            libraries: also the math libraries, which torch's own environment lacks.

        Raises:
            UsageError: a CUDA whose wheels hold no nvcc.
            ProbeError: pip cannot fetch the parts, or the disk is full.
        """
        if not facts.wheels_hold_nvcc(cuda):
            raise _no_wheels(cuda)
        folder = self.folder / (f"{cuda}-libraries" if libraries else cuda)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            parts = _COMPILER + (_LIBRARIES if libraries else ())
            wanted = f"cuda-toolkit[{','.join(parts)}]=={cuda}.*"
            if _is_whole(folder, wanted):
                return
            with FileLock(f"{folder}.lock"):
                if not _is_whole(folder, wanted):
                    self._make(folder, cuda, wanted)
        except (OSError, NotImplementedError) as error:  # no lock on this file system
            raise self._failed(cuda, str(error)) from None

    def _make(self, folder: Path, cuda: str, wanted: str) -> None:
        """In a folder beside it, then by rename: nobody sees half a toolkit."""
        for left in self.folder.glob(f".{folder.name}.*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        half = Path(tempfile.mkdtemp(dir=self.folder, prefix=f".{folder.name}."))
        try:
            pins, size = self._resolve(wanted, cuda, half)
            self.note(f"assembling a CUDA {cuda} toolkit in {folder} (once): {_megabytes(size)}")
            self._pip(["--no-deps", "--target", str(half), *pins], cuda)
            if not (half / "nvidia" / f"cu{cuda.partition('.')[0]}" / "bin" / "nvcc").exists():
                raise self._failed(cuda, f"no nvcc in {', '.join(pins)}")
            (half / "whole").write_text("\n".join([wanted, *pins]), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            half.rename(folder)
        finally:
            shutil.rmtree(half, ignore_errors=True)

    def _resolve(self, wanted: str, cuda: str, half: Path) -> tuple[list[str], int]:
        """pip's own choice of versions, as pins, and the bytes to fetch (-1: no index says)."""
        report = half / "report.json"
        options = ["--dry-run", "--ignore-installed", "--target", str(half / "nowhere")]
        self._pip([*options, "--report", str(report), wanted], cuda)
        entries = json.loads(report.read_text(encoding="utf-8"))["install"]
        report.unlink()
        pins = [f"{e['metadata']['name']}=={e['metadata']['version']}" for e in entries]
        sizes = [self._size(entry["download_info"]["url"]) for entry in entries]
        return pins, -1 if -1 in sizes else sum(sizes)

    def _size(self, url: str) -> int:
        if url.startswith(_SCHEMES):
            return self.size_of(url)
        found = self.host.file_id(unquote(url.removeprefix("file://")))
        return found.size if found else -1

    def _pip(self, words: list[str], cuda: str) -> None:
        clean = [word for name in ELSEWHERE for word in ("-u", name)]
        pip = ["env", *clean, self.own_python, "-m", "pip", "--disable-pip-version-check"]
        pip += ["install", "--quiet"]
        options = ["--only-binary", ":all:", "--no-compile"]
        done = self.host.run([*pip, *options, *words], timeout=7200)
        if not done.ok:
            raise self._failed(cuda, pip_errors(done))

    def _failed(self, cuda: str, found: str) -> ProbeError:
        return ProbeError(
            f"no CUDA {cuda} toolkit can be assembled from package-index wheels",
            found=without_secrets(found),
            wanted=f"cuda-toolkit {cuda}.* with nvcc, on an index that pip is configured for, "
            f"and room for it in {self.folder}",
            hint="see which there are: pip index versions cuda-toolkit\n"
            "or install a toolkit and name it: --cuda-home /usr/local/cuda",
        )


def _is_whole(folder: Path, wanted: str) -> bool:
    """Whether a toolkit was made to its end, and of these parts: a later release may want more."""
    try:
        made = (folder / "whole").read_text(encoding="utf-8").splitlines()[:1] == [wanted]
    except FileNotFoundError:
        return False
    return made and all(any(folder.glob(f"nvidia/cu*/{part}")) for part in _MUST_BE_THERE)


def _no_wheels(cuda: str) -> UsageError:
    major, _, minor = cuda.partition(".")
    conda = facts.install_command(facts.toolkit_need(cuda), "conda", major=major, minor=minor)
    return UsageError(
        f"no CUDA {cuda} toolkit can be assembled from wheels",
        found=f"the wheels of CUDA {cuda} hold ptxas and headers, and no nvcc",
        wanted="CUDA 13 or newer for --toolkit, or an installed toolkit",
        hint=f"without root: {conda}\nor take a torch for CUDA 13: pip install torch",
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB to fetch" if size >= 0 else "some 100 MB to fetch"
