"""choose(wheels, node) -> the one that fits best, and what stands against the others. Pure, but for
what is asked of the wheels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import msgspec
from packaging.version import Version

from deepbuild.facts.cpu_features import CPU_LEVELS
from deepbuild.model import BuiltOp, Choice, Refused
from deepbuild.plan.gpus import Service, why_no_gpu
from deepbuild.wheelhouse.judging import Node, content_problems, name_problems, worst_service
from deepbuild.wheelhouse.links import Candidate
from deepbuild.wheelhouse.told import Named, Told, read_name

Learn = Callable[[Sequence[Named]], Iterable["Told | str"]]
"""What is known of each wheel, in their order; words where it cannot be read."""

_EVIDENCE = {
    "manifest": "by its manifest",
    "binaries": "by its binaries, since it has no manifest",
    "name": "by its name and METADATA, since it has no manifest",
}
_SERVICE = {
    Service.EXACT: "SASS of their own for {}",
    Service.SAME_MAJOR: "SASS of the same major version for {}",
    Service.PTX: "PTX, which the driver compiles, for {}",
}


class Chosen(msgspec.Struct, frozen=True):
    """A choice, the wheel that it fell on (None where none fits), and the wheels that could not be
    read."""

    choice: Choice
    told: Told | None
    unread: tuple[Refused, ...]


def choose(place: str, candidates: Iterable[Candidate], node: Node, learn: Learn) -> Chosen:
    """The wheel that fits a node best.

    Names are judged first. Of the wheels that are left, those that may be best are asked first, and
    the rest are not asked once it could not be better.

    Args:
        place: where they are, for people.
    """
    named = [read_name(each) for each in sorted(candidates, key=lambda each: each.filename)]
    problems = {each.filename: name_problems(each, node) for each in named}
    waiting = [each for each in named if not problems[each.filename]]
    by_name = [Refused(name, tuple(found)) for name, found in problems.items() if found]
    fits, refused, unread, unasked = _asked(waiting, node, learn)
    fits.sort(key=lambda told: rank(told, node), reverse=True)  # stable: names decide the rest
    best = fits[0] if fits else None
    others = [told.named.filename for told in fits[1:]] + unasked
    choice = Choice(
        place=place,
        chosen=best.named.filename if best else "",
        why=_why(best, node, len(fits), len(unasked)) if best else "",
        refused=(*unread, *refused, *by_name),
        others=tuple(others),
    )
    return Chosen(choice, best, tuple(unread))


def _asked(
    waiting: Sequence[Named], node: Node, learn: Learn
) -> tuple[list[Told], list[Refused], list[Refused], list[str]]:
    """Those that fit, those that do not, those that cannot be read, and those not asked."""
    fits: list[Told] = []
    refused: list[Refused] = []
    unread: list[Refused] = []
    unasked: list[str] = []
    hoped = {each.filename: most(each, node) for each in waiting}
    ordered = sorted(waiting, key=lambda each: hoped[each.filename], reverse=True)
    for hope, group in groupby(ordered, key=lambda each: hoped[each.filename]):
        alike = list(group)
        if any(rank(told, node)[: len(hope)] > hope for told in fits):
            unasked += [each.filename for each in alike]
            continue
        for named, told in zip(alike, learn(alike), strict=True):
            if isinstance(told, str):
                unread.append(Refused(named.filename, (told,)))
            elif problems := content_problems(told, node):
                refused.append(Refused(named.filename, tuple(problems)))
            else:
                fits.append(told)
    return fits, refused, unread, unasked


# ------------------------------------------------------------ the order


def rank(told: Told, node: Node) -> tuple[object, ...]:
    """What is better is greater: newer DeepSpeed; SASS for the GPUs; where there is no torch and no
    GPU, one that needs none; more of the ops asked for; a higher CPU level; newer torch and CUDA;
    with a manifest; smaller."""
    named, cuda = told.named, str(told.contents.torch_info.get("cuda_version") or "")
    there = told.contents.installed_ops
    return (
        Version(named.release),
        worst_service(told.ops, node) or Service.EXACT,
        bool(cuda) is bool(node.torch.cuda if node.torch else node.gpus),
        len([op for op in there if not node.ops or op in node.ops]),
        _level(told),
        Version(told.torch or "0"),
        Version(cuda or "0"),
        told.evidence == "manifest",
        -named.candidate.size if named.candidate.size >= 0 else float("-inf"),
    )


def most(named: Named, node: Node) -> tuple[object, ...]:
    """The beginning of the best rank that a wheel of this name can have."""
    label, best = named.label, None
    if label and not label.lacks:
        best = worst_service([BuiltOp("", "", 0, label.sass, label.ptx)], node)
    return Version(named.release), best or Service.EXACT


def _level(told: Told) -> tuple[int, int]:
    """What its code makes use of, then how special the CPU is that it was built for."""
    import archspec.cpu

    levels = [CPU_LEVELS.index(op.cpu) for op in told.ops if op.cpu]
    name = told.cpu.replace("x86-64", "x86_64").replace("-v", "_v")
    target = archspec.cpu.TARGETS.get(name)
    return max(levels, default=0), len(target.ancestors) if target else 0


# ------------------------------------------------------------ in words


def _why(told: Told, node: Node, fits: int, unasked: int) -> str:
    parts = [f"DeepSpeed {told.named.release}"]
    parts += [f"the best of {fits} that fit"] if fits > 1 else []
    parts += [f"{unasked} more could not be better"] if unasked else []
    parts.append(_served(told, node))
    ops = told.contents.installed_ops
    if told.evidence != "name":
        parts.append(f"{len(ops)} op{'s' * (len(ops) != 1)}: {', '.join(ops) or 'none'}")
    cpu = told.cpu or max((op.cpu for op in told.ops), default="")
    parts += [f"CPU level {cpu}"] if cpu else []
    return "; ".join([*parts, _EVIDENCE[told.evidence]])


def _served(told: Told, node: Node) -> str:
    if not node.gpus:
        return f"{why_no_gpu(node.machine)}, so nothing is asked of its device code"
    how = worst_service(told.ops, node)
    if how is None:
        return "no device code in it"
    return _SERVICE[how].format(", ".join(f"{own} ({gpus})" for own, gpus in node.gpus.items()))
