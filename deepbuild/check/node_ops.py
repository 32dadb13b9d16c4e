"""The ops of an installed DeepSpeed, each loaded and compared with torch in its own process."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from deepbuild.host import Host
from deepbuild.model import Check
from deepbuild.probe.answers import last_line, parse_answer, signal_words


class Proving(msgspec.Struct, frozen=True):
    """What is to be proved: the accelerator that ops are recorded for, DeepSpeed's version, and the
    folder that it was installed into."""

    python: str
    accelerator: str
    version: str
    site: str


class _Answer(msgspec.Struct, frozen=True):
    checks: tuple[Check, ...]


def op_checks(
    host: Host, proving: Proving, ops: tuple[str, ...], note: Callable[[str], None]
) -> list[Check]:
    """Import DeepSpeed and every op, each in a fresh process, and compute with those that can be
    compared with torch."""
    checks = ask(host, proving, "", note)
    if not ops:
        none = "none in this wheel: DeepSpeed would compile them at run time, where it can"
        checks.append(Check("ops", "skipped", none))
    for op in ops:
        checks += ask(host, proving, op, note)
    return checks


def ask(host: Host, proving: Proving, op: str, note: Callable[[str], None]) -> list[Check]:
    note(f"  {op or 'deepspeed'}")
    expected = (proving.accelerator, proving.version, proving.site)
    done = host.ask_python(proving.python, "verify_op", op, *expected)
    answer = parse_answer(done, _Answer)
    if answer is None:
        why = signal_words(done) or last_line(done)
        return [Check(f"{op or 'deepspeed'} loads", "failed", why)]
    return list(answer.checks)
