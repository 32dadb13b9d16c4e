"""One op's library against the torch that it is to work with: what it needs, and who gives it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import msgspec

from deepbuild.check.archive import verdict
from deepbuild.check.inside import Inside
from deepbuild.model import BuiltOp, Check
from deepbuild.wheel.device_code import read_device_code
from deepbuild.wheel.elf import Library, read_library
from deepbuild.wheel.platform import OTHER, providers_of

_BROUGHT_BY_TORCH = re.compile(r"/(?:torch|nvidia/[^/]+)/lib/")  # which answers for its own code


class Environment(msgspec.Struct, frozen=True):
    """A Python with torch: `torch` is its version, `folders` where its libraries, and those of the
    system, are looked for; `programs` give symbols without being named: the interpreter itself."""

    python: str
    torch: str
    folders: tuple[str, ...]
    programs: tuple[str, ...]


def symbol_checks(op: BuiltOp, inside: Inside, environment: Environment | None) -> Iterator[Check]:
    name = f"{op.name} symbols"
    if environment is None:
        yield Check(name, "skipped", "no torch to compare with: name one with --python")
        return
    built = str(inside.contents.torch_info.get("version", ""))
    if not environment.torch.startswith(f"{built}."):
        yield Check(name, "skipped", f"it is for torch {built}, and here is {environment.torch}")
        return
    yield _resolved(name, op, inside, environment)
    yield from _code_of_others(op, environment)


def _resolved(name: str, op: BuiltOp, inside: Inside, environment: Environment) -> Check:
    found, lacking = closure(op.needed, environment)
    given = {symbol for library in found.values() for symbol in library.given}
    for program in environment.programs:
        given |= set(_read(program).given)
    for other in inside.libraries.values():  # DeepSpeed loads pin_memory before those that use it
        given |= set(other.given)
    unresolved = [each for each in inside.libraries[op.name].wanted if each not in given]
    if unresolved and lacking:
        return Check(name, "skipped", f"not here: {', '.join(lacking)}")
    problems = [f"nobody gives {each}" for each in unresolved]
    return verdict(name, problems, f"all found in torch {environment.torch} and the system")


def closure(
    needed: tuple[str, ...], environment: Environment
) -> tuple[Mapping[str, Library], list[str]]:
    """The libraries that are loaded with one, and those that are not there."""
    found: dict[str, Library] = {}
    waiting, lacking = list(needed), []
    while waiting:
        soname = waiting.pop()
        if soname in found or soname in lacking:
            continue
        path = _find(soname, environment.folders)
        if path:
            found[soname] = _read(path)
            waiting += found[soname].needed
        else:
            lacking.append(soname)
    return found, [each for each in needed if each in lacking]


def _find(soname: str, folders: tuple[str, ...]) -> str:
    paths = (Path(folder) / soname for folder in folders)
    return next((str(path) for path in paths if path.is_file()), "")


@cache
def _read(path: str) -> Library:
    try:
        with Path(path).open("rb") as file:
            return read_library(file)
    except (OSError, ValueError):
        return Library("")


def _code_of_others(op: BuiltOp, environment: Environment) -> Iterator[Check]:
    """Device code in libraries that an op links decides where it runs as much as its own."""
    for soname, whose in providers_of([op], ()).items():
        path = _find(soname, environment.folders)
        if whose != OTHER or not path or _BROUGHT_BY_TORCH.search(path):
            continue
        with Path(path).open("rb") as file:
            code = read_device_code(file)
        if code.sass or code.ptx:
            yield _of_other(f"{op.name} with {soname}", op, code.sass, code.ptx)


def _of_other(name: str, op: BuiltOp, sass: tuple[str, ...], ptx: tuple[str, ...]) -> Check:
    lacking = [arch for arch in op.sass if not runs(arch, sass, ptx)]
    found = f"it has SASS {', '.join(sass) or 'none'}, PTX {', '.join(ptx) or 'none'}"
    problems = [f"no code for {arch} in it: the op fails there ({found})" for arch in lacking]
    return verdict(name, problems, found)


def runs(arch: str, sass: tuple[str, ...], ptx: tuple[str, ...]) -> bool:
    """Whether a GPU has code: SASS of its major and no newer minor, or older PTX.

    >>> runs("8.9", ("8.0",), ()), runs("12.0", ("9.0",), ()), runs("12.0", ("9.0",), ("9.0",))
    (True, False, True)
    """
    major, _, minor = arch.partition(".")
    plain = [each for each in sass if each[-1].isdigit()]
    same = any(each.split(".")[0] == major and each.split(".")[1] <= minor for each in plain)
    wanted = (int(major), int(minor[:1]))
    older = any(tuple(map(int, each.split("."))) <= wanted for each in ptx if each[-1].isdigit())
    return same or older or arch in sass
