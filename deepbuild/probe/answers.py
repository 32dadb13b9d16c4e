"""Reading the answer of a child script out of all that was printed beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from deepbuild import codec
from deepbuild.children import MARKER
from deepbuild.host import Completed, Host

Answer = TypeVar("Answer")


def parse_answer(done: Completed, kind: type[Answer]) -> Answer | None:
    """The answer in a child's output, None if it gave none.

    >>> parse_answer(Completed(0, 'noise\\n@deepbuild-answer@{"a": 1}\\n', ""), dict)
    {'a': 1}
    """
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARKER):
            try:
                return codec.decode(line[len(MARKER) :], kind)
            except ValueError:
                return None
    return None


def ask(
    host: Host, python: str, script: str, kind: type[Answer], *, identity: Sequence[str]
) -> tuple[Answer | None, Completed]:
    """What a child script answers, and how it ended. A remembered answer that cannot be read was
    spoilt since, so it is asked for again."""
    done = host.ask_python(python, script, identity=identity)
    answer = parse_answer(done, kind)
    if answer is None and done.ok:
        done = host.ask_python(python, script)
        answer = parse_answer(done, kind)
    return answer, done


def last_line(done: Completed) -> str:
    """The last line that a failed program printed, to quote it."""
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {done.returncode}, no output"


def pip_errors(done: Completed) -> str:
    """What pip says went wrong, with the constraint that it may have met."""
    told = [
        line for line in done.stderr.splitlines() if "ERROR" in line or "user requested" in line
    ]
    return "\n".join(told[:4]) or last_line(done)


def signal_words(done: Completed) -> str:
    """What a process that died by a signal most likely met, "" for another end."""
    known = {-4: "illegal instruction: built for a newer CPU than this", -11: "segmentation fault"}
    known |= {-7: "bus error: a library that was cut short", -6: "it gave up (SIGABRT)"}
    known |= {-9: "it was killed (SIGKILL): memory may have run out"}
    return known.get(done.returncode, "")
