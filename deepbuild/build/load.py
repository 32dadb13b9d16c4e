"""Every op of a finished wheel loads with the torch that it was built for."""

from __future__ import annotations

import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from deepbuild import codec
from deepbuild.children import MARKER
from deepbuild.errors import VerificationError
from deepbuild.host import Completed, LocalHost
from deepbuild.model import BuildPlan, BuiltOp
from deepbuild.probe.answers import last_line, signal_words
from deepbuild.wheel.elf import read_library

_FROM_ITSELF = re.compile(r"\$ORIGIN/(?:\.\./)+([^/]+)")


@dataclass(frozen=True)
class _Answer:
    op: str
    error: str


def prove_loading(wheel: Path, ops: tuple[BuiltOp, ...], plan: BuildPlan, work: Path) -> None:
    """Load every library of a wheel in a child of the plan's interpreter.

    Args:
        work: the build's folder, with the stand-in for the driver; the libraries are unpacked
            there.

    Raises:
        VerificationError: an op does not load; all that do not are named.
    """
    if not ops:
        return
    paths = _unpack(wheel, ops, work / "proof", Path(plan.torch.root).parent)
    stub = work / "cuda" / "lib64" / "libcuda.so"
    arguments = [str(stub) if stub.exists() else "", *(f"{op}={p}" for op, p in paths.items())]
    done = LocalHost().ask_python(plan.python.executable, "import_ops", *arguments)
    wrong = failures(done, list(paths))
    if wrong:
        raise VerificationError(
            f"ops of the wheel do not load with torch {plan.torch.version}",
            found="\n".join(wrong),
            wanted="every op imported in a fresh process",
            hint="this is a defect of deepbuild or of that DeepSpeed release: please report it",
        )


def _unpack(wheel: Path, ops: tuple[BuiltOp, ...], folder: Path, packages: Path) -> dict[str, Path]:
    shutil.rmtree(folder, ignore_errors=True)
    # async_io and gds find symbols of pin_memory, which DeepSpeed loads before them as well.
    first = sorted(ops, key=lambda op: op.name != "pin_memory")
    with zipfile.ZipFile(wheel) as archive:
        paths = {op.name: Path(archive.extract(op.library, folder)) for op in first}
    # Libraries of other packages are looked for from where one is: as if all were installed here.
    for path in paths.values():
        for other in _packages_of(path):
            link = folder / other
            if not link.exists():
                link.symlink_to(packages / other)
    return paths


def _packages_of(library: Path) -> set[str]:
    with library.open("rb") as file:
        found = map(_FROM_ITSELF.fullmatch, read_library(file).run_paths)
        return {match[1] for match in found if match}


def failures(done: Completed, ops: list[str]) -> list[str]:
    """What did not load, and why; an op that ended the process counts, and all after it.

    >>> failures(Completed(0, '@deepbuild-answer@{"op": "utils", "error": ""}', ""), ["utils"])
    []
    """
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARKER)]
    answers = [codec.decode(line[len(MARKER) :], _Answer) for line in lines]
    wrong = [f"{answer.op}: {answer.error}" for answer in answers if answer.error]
    silent = ops[len(answers) :]
    if silent:
        why = signal_words(done) or last_line(done)
        wrong.append(f"{silent[0]}: {why}" + "".join(f"; {op} not tried" for op in silent[1:]))
    return wrong
