"""explain(log, machine) -> Explanation: the first real error among thousands of lines, its cause,
and what to do on this machine. What is not known is not guessed: then the lines are shown that may
tell it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import BinaryIO

from deepbuild.explain.finding import Findings, Hit
from deepbuild.explain.reading import Line, Lines
from deepbuild.explain.remedies import Remedies
from deepbuild.explain.rules import Rules, rules
from deepbuild.facts.causes import CauseRow
from deepbuild.model import Explanation, Machine

__all__ = ["explain"]


def explain(log: BinaryIO, source: str, look: Callable[[], Machine | None]) -> Explanation:
    """
    Args:
        source: what the log is called.
        look: probes the machine that the ways out are for; asked only where one depends on it.

    Raises:
        UsageError: the log is neither text nor packed by gzip.
    """
    known = rules()
    lines = Lines(log, known.anchors)
    findings = Findings()
    plain: set[str] = set()
    for line in lines:
        shape = _DIGITS.sub("", line.text)
        if shape in plain:
            continue
        if not _sort(line, known, findings):
            plain.add(shape)
    return findings.explanation(source, lines.count, Remedies(look))


_DIGITS = re.compile(r"\d+")


def _sort(line: Line, known: Rules, findings: Findings) -> bool:
    """Note what a line tells; False if it tells nothing."""
    hit = _hit(line, known)
    why = known.noise_of(line.text)
    if hit:
        findings.hits.append(hit)
    if why:
        findings.noise.append((line.number, line.text, why))
    if known.well.search(line.text):
        findings.well = line.number
        return True
    if not hit and not why and known.may_tell(line.text):
        findings.candidates.append((line.number, line.text))
        return True
    return bool(hit or why)


def _hit(line: Line, known: Rules) -> Hit | None:
    for row, match in known.causes_of(line.text):
        if _holds(row, line):
            return Hit.of(row, match, line)
    return None


def _holds(row: CauseRow, line: Line) -> bool:
    """Whether what else must be in the log is there, before the line or in it."""
    if not row.when:
        return True
    around = line.before.decode("utf-8", "replace") + line.text
    return bool(re.search(row.when, around))
