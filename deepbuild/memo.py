"""A host that remembers slow answers as long as the files that they came from are unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deepbuild.host import Completed, LocalHost, child_script, write_atomically


@dataclass
class MemoHost(LocalHost):
    """This machine, with slow answers kept in `store` under the identity of their files.

    A store that cannot be read counts as empty, one that cannot be written is not kept: the
    memory is never needed, only quick.
    """

    store: Path
    _answers: dict[str, Any] = field(default_factory=dict)
    _new: bool = False

    def __post_init__(self) -> None:
        try:
            answers = json.loads(self.store.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(answers, dict):
            self._answers = answers

    def run(
        self, argv: Sequence[str], *, timeout: float = 60, identity: Sequence[str] = ()
    ) -> Completed:
        return self._remember(
            ["run", *argv], identity, lambda: super(MemoHost, self).run(argv, timeout=timeout)
        )

    def ask_python(
        self, python: str, script: str, *args: str, identity: Sequence[str] = ()
    ) -> Completed:
        files = [str(child_script(script)), *identity] if identity else []
        return self._remember(
            ["ask", python, script, *args],
            files,
            lambda: super(MemoHost, self).ask_python(python, script, *args),
        )

    def _remember(
        self, call: list[str], identity: Sequence[str], ask: Callable[[], Completed]
    ) -> Completed:
        if not identity:
            return ask()
        ids = [
            [path, asdict(found) if (found := self.file_id(path)) else None] for path in identity
        ]
        key = hashlib.sha256(json.dumps([call, ids]).encode()).hexdigest()
        kept = _completed(self._answers.get(key))
        if kept:
            return kept
        answer = ask()
        if answer.ok:  # a failure may have a cause that is no file: a variable, a full disk
            self._answers[key], self._new = asdict(answer), True
        return answer

    def save(self) -> None:
        """Keep what was learned; a second process's answers may be lost, never mixed up."""
        if not self._new:
            return
        with contextlib.suppress(OSError):
            self.store.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.store, json.dumps(self._answers))
            self._new = False


def _completed(kept: Any) -> Completed | None:
    """A remembered answer, None if there is none or it is damaged."""
    if not isinstance(kept, dict) or set(kept) != {"returncode", "stdout", "stderr"}:
        return None
    whole = kept["returncode"] == 0 and isinstance(kept["stdout"], str)
    return Completed(0, kept["stdout"], kept["stderr"]) if whole else None
