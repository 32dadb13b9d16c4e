"""An explanation, and the page of a cause, as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from deepbuild.explain.remedies import Remedies
from deepbuild.facts.causes import CauseRow
from deepbuild.model import Cause, Explanation, Told

_SHOWN = 200  # characters of a line
_LABEL = 10


def explanation_report(found: Explanation) -> RenderableType:
    """Each cause with what it happened to, its evidence, and what to do; then what is noise."""
    parts: list[RenderableType] = [_whole(_headline(found), "bold"), Text()]
    for cause in found.causes:
        parts += [*_cause(cause), Text()]
    for told in found.candidates:
        parts.append(_pair(f"line {told.line}", told.text[:_SHOWN], "yellow"))
    if found.candidates:
        parts += [Text(), Text("None of these is known. " + _UNKNOWN)]
    if found.noise:
        parts.append(Text("Only consequences", "dim"))
        parts += [_noise_line(each.why, each.times, each.last) for each in found.noise]
    return Group(*parts)


_UNKNOWN = (
    "The first one is the likeliest to tell the cause: what comes later often only follows from "
    "it. `deepbuild report LOG` gathers what to ask with."
)


def _headline(found: Explanation) -> str:
    lines = f"{found.source}, {found.lines} line{'s' * (found.lines != 1)}"
    if found.verdict == "clean":
        return f"{lines}: nothing in it tells of a failure"
    if found.verdict == "unknown":
        return f"{lines}: it failed, and the cause is not known"
    count = len(found.causes)
    return f"{lines}: {count} cause{'s' * (count != 1)}"


def _cause(cause: Cause) -> Iterator[RenderableType]:
    sure = "" if cause.sure == "certain" else f"  ({cause.sure})"
    yield Text.assemble((f"{cause.code}  ", "bold red"), (cause.title, "bold"), sure)
    if cause.ops:
        yield _pair("op", ", ".join(cause.ops))
    if cause.files:
        yield _pair("file", ", ".join(cause.files[:3]))
    for told in cause.evidence[:1]:
        times = f"   ({cause.times} times)" if cause.times > 1 else ""
        yield _pair(f"line {told.line}", told.text[:_SHOWN] + times, "dim")
    yield _pair("cause", cause.cause)
    for label, way in zip(["to do", *["or"] * len(cause.to_do)], cause.to_do, strict=False):
        yield _command(label, way)


def _noise_line(why: str, times: int, last: Told) -> RenderableType:
    count = f" ({times} times)" if times > 1 else ""
    return _pair(f"line {last.line}", f"{why}{count}: {last.text[:80]}", "dim")


def _whole(text: str, style: str = "") -> Text:
    """A line that is not broken: paths and commands are copied from it."""
    return Text(text, style, no_wrap=True, overflow="ignore")


def _command(label: str, way: str) -> RenderableType:
    return _whole(f"  {label:<{_LABEL}}  {way}", "green")


def _pair(label: str, text: str, style: str = "") -> RenderableType:
    """A label, and a text whose further lines are put below its first."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=_LABEL)
    table.add_column(overflow="fold")
    table.add_row(Text(label, "dim"), Text(text, style))
    return Padding(table, (0, 0, 0, 2))


def page_report(row: CauseRow, remedies: Remedies) -> RenderableType:
    """What is known of a cause, whatever the log."""
    title = row.title.translate(_BRACES)
    parts: list[RenderableType] = [
        Text.assemble((f"{row.code}  ", "bold red"), (title, "bold")),
        _pair("cause", remedies.told(row.cause).translate(_BRACES)),
    ]
    ways = [way.translate(_BRACES) for way in remedies.ways(row.fix)]
    labels = ["to do", *["or"] * len(ways)]
    parts += [_command(label, way) for label, way in zip(labels, ways, strict=False)]
    parts += [_pair("looks like", example, "dim") for example in row.examples]
    parts.append(_pair("known from", row.source, "dim"))
    return Group(*parts)


_BRACES = str.maketrans({"{": "<", "}": ">"})
