"""A trial: a small text compiled in a folder that is thrown away."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from deepbuild.host.processes import CANNOT_RUN, Completed, completed

TRIAL_VARIABLES = ("HOME", "LD_LIBRARY_PATH", "LM_LICENSE_FILE")
SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_LONGEST = 60  # seconds


def compile_trial(
    argv: Sequence[str], source: str, outer: Mapping[str, str]
) -> tuple[Completed, tuple[str, ...]]:
    """How a trial went, and the headers that a compiler asked with `-MD -MF {headers}` noted.

    Args:
        outer: the environment of the shell, of which little is passed on.
    """
    try:
        holder = tempfile.TemporaryDirectory(prefix="deepbuild-trial-", ignore_cleanup_errors=True)
    except OSError as error:
        return Completed(CANNOT_RUN, "", f"no folder for a trial: {error}"), ()
    try:
        with holder as folder:
            return _compile(argv, source, Path(folder), outer)
    except OSError as error:
        return Completed(CANNOT_RUN, "", f"the trial's files: {error}"), ()


def _compile(
    argv: Sequence[str], source: str, folder: Path, outer: Mapping[str, str]
) -> tuple[Completed, tuple[str, ...]]:
    kind = "cu" if Path(argv[0]).name.startswith("nvcc") else "cpp"
    places = {"{source}": f"trial.{kind}", "{out}": "out", "{headers}": "headers"}
    (folder / places["{source}"]).write_text(source, encoding="utf-8")
    env = build_environment(argv, outer) | {"TMPDIR": str(folder)}
    words = [f"{folder}/{places[word]}" if word in places else word for word in argv]
    done = completed(words, env, _LONGEST)
    if done.ok and "{out}" in argv and not _is_elf(folder / "out"):
        done = Completed(1, "", f"{argv[0]}: it ended without an error and made no object file")
    level = newest_glibcxx(folder / "out") if done.ok else ""
    plain = Completed(done.returncode, level, done.stderr.replace(f"{folder}/", ""))
    named = list(parse_trace(done.stdout))
    with contextlib.suppress(OSError, ValueError):
        named += parse_rule((folder / "headers").read_text(encoding="utf-8"))
    return plain, tuple(word for word in named if not word.startswith(str(folder)))


def build_environment(argv: Sequence[str], outer: Mapping[str, str]) -> dict[str, str]:
    """As in a build: of the shell only what programs need to start. CPATH and the like are left
    out; the folders of the program, of nvcc's host compiler, and the system's are all of PATH."""
    kept = {name: outer[name] for name in TRIAL_VARIABLES if name in outer}
    own = [str(Path(program).parent) for program in programs_of(argv)]
    return {**kept, "PATH": ":".join([*own, *SYSTEM_PATH]), "LC_ALL": "C"}


def programs_of(argv: Sequence[str]) -> list[str]:
    """The program of a trial, and the host compiler that it starts if it is an nvcc."""
    return [argv[0], *(argv[argv.index("-ccbin") + 1 :][:1] if "-ccbin" in argv else ())]


def _is_elf(file: Path) -> bool:
    with contextlib.suppress(OSError), file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"
    return False


def newest_glibcxx(file: Path) -> str:
    """The newest GLIBCXX version that a shared library names ("3.4.30"), "" for none."""
    with contextlib.suppress(OSError):
        numbers = re.findall(rb"GLIBCXX_3\.4\.(\d+)\0", file.read_bytes())
        return f"3.4.{max(map(int, numbers))}" if numbers else ""
    return ""


def parse_trace(text: str) -> tuple[str, ...]:
    """The files that a linker asked with `--trace` has read.

    >>> parse_trace("/usr/lib/Scrt1.o\\n-lm (/usr/lib/libm.so.6)\\n/usr/lib/libgcc.a(x.o)\\n")
    ('/usr/lib/Scrt1.o', '/usr/lib/libm.so.6', '/usr/lib/libgcc.a')
    """
    found = re.findall(r"/[^\s()]+\.(?:o|a|so(?:\.[0-9]+)*)(?=[\s()]|$)", text)
    return tuple(dict.fromkeys(found))


def parse_rule(text: str) -> tuple[str, ...]:
    """The headers in a rule that a compiler wrote for make, with make's escapes undone.

    >>> parse_rule("out: trial.cpp /a/b.h /my\\\\ folder/c$$.h")
    ('trial.cpp', '/a/b.h', '/my folder/c$.h')
    """
    rule = text.replace("\\\n", " ").partition(": ")[2]
    words = re.findall(r"(?:\\.|[^\s\\])+", rule)
    return tuple(re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words)
