"""What the lines of a log tell, put together: causes, hints, and what is only a consequence."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from deepbuild.explain.places import file_of, op_of
from deepbuild.explain.reading import Line
from deepbuild.explain.remedies import Remedies
from deepbuild.facts.causes import CauseRow
from deepbuild.model import Cause, Explanation, Noise, Told

_SHOWN = 3
_CANDIDATES = 12
# Where configure scripts, CMake and distutils compile what they only want to try.
_TRIED = re.compile(
    r"(?:^|[\s/])(?:conftest\.|CMakeTmp|CMakeScratch|TryCompile|tmp/(?:tmp\w+/)?\w+\.c\b)"
)


class Hit(msgspec.Struct, frozen=True):
    """One line that tells a cause."""

    row: CauseRow
    named: dict[str, str]
    number: int
    text: str
    op: str
    file: str
    tried: bool

    @staticmethod
    def of(row: CauseRow, match: re.Match[str], line: Line) -> Hit:
        groups = {name.rstrip("2"): value for name, value in match.groupdict().items() if value}
        named = dict.fromkeys(match.groupdict(), "") | groups
        # A linker's command does not name the op as a compiler's does, and stands just before.
        near = b"\n".join(line.before.rsplit(b"\n", 6)[-6:]) if row.is_link else line.before
        op = row.op or named.get("op") or op_of(line.text, near)
        tried = bool(_TRIED.search(line.text))
        file = file_of(line.text)
        return Hit(row, named, line.number, line.text, op, file, tried)


@dataclass
class Findings:
    """`well` is the last line that says that all went well."""

    hits: list[Hit] = field(default_factory=list)
    noise: list[tuple[int, str, str]] = field(default_factory=list)
    candidates: list[tuple[int, str]] = field(default_factory=list)
    well: int = 0

    def explanation(self, source: str, lines: int, remedies: Remedies) -> Explanation:
        counted = self._counted()
        failed = max([0, *(number for number, *_ in self.noise)])
        last = max([failed, *(hit.number for hit in counted)])
        quiet = not counted and not failed and not self.candidates
        if quiet or self.well > last:
            return Explanation(source, lines, "clean", (), (), ())
        causes = tuple(_cause(hits, remedies) for hits in _groups(counted))
        verdict = "known" if causes else "unknown" if failed or self.candidates else "clean"
        open_ = () if causes else tuple(Told(*each) for each in self.candidates[:_CANDIDATES])
        return Explanation(source, lines, verdict, causes, self._noise(), open_)

    def _counted(self) -> list[Hit]:
        """Causes, and hints about the ops that failed; where there are none, other hints if that
        is all that the log is, or if they are about no op and something failed; else what is said
        last."""
        causes = [hit for hit in self.hits if hit.row.role == "cause" and not hit.tried]
        hints = [hit for hit in self.hits if hit.row.role == "hint"]
        last = [hit for hit in self.hits if hit.row.role == "last"]
        meant = {hit.op for hit in last if hit.op}
        about = [hit for hit in hints if hit.op in meant]
        if causes or about:
            return sorted([*causes, *about], key=lambda hit: hit.number)
        failed = bool(last or self.noise or self.candidates)
        counted = [hit for hit in hints if bool(hit.op) != failed]
        return counted or last or [hit for hit in self.hits if hit.tried and self.noise]

    def _noise(self) -> tuple[Noise, ...]:
        by_reason: dict[str, list[tuple[int, str]]] = {}
        for number, text, why in self.noise:
            by_reason.setdefault(why, []).append((number, text))
        return tuple(Noise(why, len(told), Told(*told[-1])) for why, told in by_reason.items())


def _groups(hits: list[Hit]) -> list[list[Hit]]:
    """The lines of each cause, without causes that another one explains."""
    found: dict[str, list[Hit]] = {}
    for hit in hits:
        found.setdefault(hit.row.code, []).append(hit)
    explained = {code for several in found.values() for code in several[0].row.explains}
    return [several for code, several in found.items() if code not in explained]


def _cause(hits: list[Hit], remedies: Remedies) -> Cause:
    first = hits[0]
    row, ops = first.row, tuple(dict.fromkeys(hit.op for hit in hits if hit.op))
    named = first.named | {"op": first.op or "OP"}
    every = {name: _listed([hit.named.get(name, "") for hit in hits]) for name in first.named}
    return Cause(
        code=row.code,
        title=filled(row.title, every | {"op": ", ".join(ops) or "an op"}),
        cause=remedies.told(filled(row.cause, named)),
        sure=row.sure if row.role == "cause" else "likely",
        ops=ops,
        files=tuple(dict.fromkeys(hit.file for hit in hits if hit.file)),
        evidence=tuple(Told(hit.number, hit.text[:500]) for hit in hits[:_SHOWN]),
        times=len(hits),
        to_do=remedies.ways(tuple(filled(way, named) for way in row.fix)),
    )


def _listed(names: list[str]) -> str:
    """
    >>> _listed(["curand", "cudart", "curand"]), _listed(list("abcdef"))
    ('curand, cudart', 'a, b, c and 3 more')
    """
    distinct = [name for name in dict.fromkeys(names) if name]
    more = f" and {len(distinct) - _SHOWN} more" if len(distinct) > _SHOWN else ""
    return ", ".join(distinct[:_SHOWN]) + more


def filled(text: str, named: dict[str, str]) -> str:
    """
    >>> filled("no {header}", {"header": "x.h"}), filled("of torch's CUDA ({torch})", {"torch": ""})
    ('no x.h', "of torch's CUDA")
    """
    for name, value in named.items():
        text = text.replace("{" + name + "}", value)
    return re.sub(r" ?\(\)", "", text).replace("  ", " ")
