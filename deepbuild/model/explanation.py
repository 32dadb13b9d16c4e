"""What a log tells of why something failed."""

from __future__ import annotations

import msgspec

EXPLANATION_SCHEMA = 1


class Told(msgspec.Struct, frozen=True):
    """A line of a log, by its number."""

    line: int
    text: str


class Cause(msgspec.Struct, frozen=True):
    """Why something failed: `code` is stable, `sure` is "certain" or "likely". `evidence` are lines
    that tell it, the first one first, of `times` in all; `ops` and `files` are what it happened to,
    as far as the log says. `to_do` are the ways out on this machine, the first one first."""

    code: str
    title: str
    cause: str
    sure: str
    ops: tuple[str, ...]
    files: tuple[str, ...]
    evidence: tuple[Told, ...]
    times: int
    to_do: tuple[str, ...]


class Noise(msgspec.Struct, frozen=True):
    """Lines that are no causes, and why; the last one of them."""

    why: str
    times: int
    last: Told


class Explanation(msgspec.Struct, frozen=True):
    """`verdict` is "known", "unknown" (then `candidates` are the lines that may tell the cause), or
    "clean": nothing in it failed, or all went well in the end."""

    source: str
    lines: int
    verdict: str
    causes: tuple[Cause, ...]
    noise: tuple[Noise, ...]
    candidates: tuple[Told, ...]
    schema: int = EXPLANATION_SCHEMA
