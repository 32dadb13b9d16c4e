"""The causes of `deepbuild.facts.causes`, ready to be looked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, cached_property

import msgspec

from deepbuild import facts
from deepbuild.explain.forms import forms
from deepbuild.facts.causes import CauseRow


class Rule(msgspec.Struct, frozen=True):
    """A way to tell a cause: an expression for a line that has one of the anchors."""

    row: CauseRow
    pattern: re.Pattern[str]
    anchors: tuple[str, ...]


class Noise(msgspec.Struct, frozen=True):
    """A way to tell what is no cause, and why."""

    pattern: re.Pattern[str]
    anchors: tuple[str, ...]
    why: str


class Rules:
    """All of them. `anchors` are the words of which a line must have one to be looked at."""

    def __init__(self) -> None:
        others = (rule for row in facts.cause_rows() for rule in _of(row))
        self.causes = (*others, *(rule for row in facts.own_rows() for rule in _of_own(row)))
        rows = facts.noise_rows()
        self.noise = tuple(Noise(re.compile(row.match), row.anchor, row.why) for row in rows)
        well, self._well_anchors = facts.success_lines()
        self.well, self._harmless = re.compile(well), re.compile(facts.harmless_lines())

    @cached_property
    def anchors(self) -> frozenset[bytes]:
        words = {*_CANDIDATES, *self._well_anchors}
        words |= {anchor for rule in self.causes for anchor in rule.anchors}
        words |= {anchor for noise in self.noise for anchor in noise.anchors}
        return frozenset(word.encode() for word in words)

    def cause_of(self, text: str) -> tuple[CauseRow, re.Match[str]] | None:
        """The first cause that a line tells; `when` is not asked for."""
        return next(self.causes_of(text), None)

    def causes_of(self, text: str) -> Iterator[tuple[CauseRow, re.Match[str]]]:
        for rule in self.causes:
            if any(anchor in text for anchor in rule.anchors):
                match = rule.pattern.search(text)
                unless = match and rule.row.unless and re.search(rule.row.unless, text)
                if match and not unless:
                    yield rule.row, match

    def may_tell(self, text: str) -> bool:
        """Whether a line may tell a cause that nobody knows."""
        return bool(CANDIDATE.search(text)) and not self._harmless.search(text)

    def noise_of(self, text: str) -> str:
        """Why a line is no cause, "" for one that may be."""
        for noise in self.noise:
            if any(anchor in text for anchor in noise.anchors) and noise.pattern.search(text):
                return noise.why
        return ""


# A line that may tell a cause which nobody knows: of a compiler, a linker, Python, make.
CANDIDATE = re.compile(
    r"(?:fatal |catastrophic )?[Ee]rror ?(?:\w+\d+ ?)?: |ERROR: |[Ff]atal ?: |cannot find "
    r"|undefined reference|multiple definition of|^Exception: |is not installed on"
    r"|Could not find a package|^Command .* returned non-zero exit status"
    r"|^(?:\w+\.)*\w+(?:Error|Exception|Exit|Interrupt)(?:: |$)|: (?:command )?not found"
    r"|[:：] ?(?:致命)?错误[:：]|[Ff]ehler: |erreur ?: |ошибка: |エラー: "
)
_CANDIDATES = (
    *("rror: ", "rror : ", "rror:", "atal:", "atal :", "atal error", "RROR: ", "xception: "),
    *("ultiple definition", "not installed on", "find a package", "not found", "cannot find "),
    *("错误", "ehler: ", "erreur", "ошибка", "エラー"),
)


@cache
def rules() -> Rules:
    return Rules()


def _of(row: CauseRow) -> list[Rule]:
    kind, name = row.missing
    ways = [(pattern, row.anchor) for pattern in row.match]
    ways += forms(kind, name) if kind else ()
    return [Rule(row, re.compile(pattern), anchors) for pattern, anchors in ways]


def _of_own(row: CauseRow) -> list[Rule]:
    """As the command line prints them, before whatever else is in a log."""
    return [Rule(row, re.compile(f"^error: {pattern}"), ("error: ",)) for pattern in row.match]
