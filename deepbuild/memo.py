"""A host that remembers slow answers as long as the files that they came from are unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from deepbuild.host import (
    QUICK,
    TRIAL_VARIABLES,
    Completed,
    LocalHost,
    child_script,
    write_atomically,
)

# Failures that say nothing of the compiler: the disk, the memory or the processes ran out.
_FOR_WANT = re.compile(
    r"No space left|emory exhausted|out of memory|allocate memory|Killed|temporarily unavailable"
    r"|Disk quota|Too many open files",
    re.IGNORECASE,
)


_MOST = 300  # answers to keep: a plan takes some fifty


@dataclass
class MemoHost(LocalHost):
    """This machine, with slow answers kept in `store` under the identity of their files.

    A store that cannot be read counts as empty, one that cannot be written is not kept: the
    memory is never needed, only quick.
    """

    store: Path
    _answers: dict[str, Any] = field(default_factory=dict)
    _stamps: dict[str, list[Any] | None] = field(default_factory=dict)
    _new: bool = False

    def __post_init__(self) -> None:
        try:
            answers = msgspec.json.decode(self.read_text(str(self.store)) or "")
        except (OSError, ValueError, RecursionError):
            return
        if isinstance(answers, dict):
            self._answers = answers

    @property
    def is_new(self) -> bool:
        """Whether nothing is remembered yet, so that answers take their time."""
        return not self._answers

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = QUICK,
        identity: Sequence[str] = (),
        as_built: bool = False,
    ) -> Completed:
        return self._remember(
            ["run", *argv, *(["as built"] if as_built else [])],
            identity,
            lambda: super(MemoHost, self).run(argv, timeout=timeout, as_built=as_built),
        )

    def ask_python(
        self, python: str, script: str, *args: str, identity: Sequence[str] = ()
    ) -> Completed:
        files = [str(child_script(script)), *identity] if identity else []
        loader = self.env().get("LD_LIBRARY_PATH", "")  # decides which libraries come with torch
        return self._remember(
            ["ask", python, script, *args, loader],
            files,
            lambda: super(MemoHost, self).ask_python(python, script, *args),
        )

    def trial(self, argv: Sequence[str], source: str, *, identity: Sequence[str] = ()) -> Completed:
        """A failed trial is kept as well, unless it failed for want of time, disk or memory."""
        if not identity:
            return super().trial(argv, source)
        variables = {n: v for n, v in self.env().items() if n in TRIAL_VARIABLES}
        key = self._key(["trial", *argv, source, json.dumps(variables, sort_keys=True)], identity)
        kept = self._answers.get(key)
        answer = _completed(kept, failed=True)
        if answer and isinstance(kept, dict) and self._unchanged(kept.get("headers")):
            return answer
        answer, headers = self.trial_with_headers(argv, source)
        if answer.returncode in {0, 1, 2} and not _FOR_WANT.search(answer.stderr):
            seen = {path: self._stamp(path) for path in headers}
            self._answers[key], self._new = {**asdict(answer), "headers": seen}, True
        return answer

    def _unchanged(self, headers: Any) -> bool:
        """Trials read the same headers over and over, so each is looked at once between saves."""
        if not isinstance(headers, dict):
            return False
        for path in headers.keys() - self._stamps.keys():
            self._stamps[path] = self._stamp(path)
        return all(self._stamps[path] == stamp for path, stamp in headers.items())

    def _stamp(self, path: str) -> list[Any] | None:
        """What tells whether a file is the same."""
        found = self.file_id(path)
        return [found.kind, found.size, found.mtime_ns] if found else None

    def _key(self, call: list[str], identity: Sequence[str]) -> str:
        ids = [[path, self._stamp(path)] for path in identity]
        return hashlib.sha256(json.dumps([call, ids]).encode()).hexdigest()

    def _remember(
        self, call: list[str], identity: Sequence[str], ask: Callable[[], Completed]
    ) -> Completed:
        if not identity:
            return ask()
        key = self._key(call, identity)
        kept = _completed(self._answers.get(key))
        if kept:
            return kept
        answer = ask()
        if answer.ok:  # a failure may have a cause that is no file: a variable, a full disk
            self._answers[key], self._new = asdict(answer), True
        return answer

    def save(self) -> None:
        """Keep what was learned; a second process's answers may be lost, never mixed up."""
        self._stamps.clear()
        if not self._new:
            return
        for key in list(self._answers)[:-_MOST]:  # the oldest: of compilers that have gone
            del self._answers[key]
        with contextlib.suppress(OSError):
            self.store.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.store, json.dumps(self._answers))
            self._new = False


def _completed(kept: Any, *, failed: bool = False) -> Completed | None:
    """A remembered answer, None if there is none or it is damaged."""
    if not isinstance(kept, dict) or set(kept) - {"headers"} != {"returncode", "stdout", "stderr"}:
        return None
    code, *texts = kept["returncode"], kept["stdout"], kept["stderr"]
    whole = all(isinstance(text, str) for text in texts) and isinstance(code, int)
    return Completed(code, *texts) if whole and (failed or code == 0) else None
