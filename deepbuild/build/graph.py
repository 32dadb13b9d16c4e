"""From recorded commands to a graph of work: each file compiled once, each op linked from it.

Pure: `make_graph` decides what is run, `deepbuild.build.ninja_file` writes it down.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from deepbuild.build.flags import host_flags, link_flags, nvcc_flags, with_run_paths
from deepbuild.costs import File
from deepbuild.model import FlagPolicy

_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu")
# Options that only say where to note headers: with a value of their own, and without.
_NOTING = {"-MF", "-MT", "-MQ", "--dependency-output"}
_NOTING_ALONE = {"-MD", "-MMD", "-MP", "--generate-dependencies-with-compile"}
_SAYS_COMPILE = {"-c", "--compile", "-shared"}  # the last one says nothing to a compile
_SEARCHED = {"-isystem", "-iquote", "-idirafter"}  # folders, each a word of its own
_CODE = re.compile(r"code=\[?\"?([\w,]+)")
_BUILD_FOLDER = re.compile(r"^build/[^/]+/")
_EXTENSION_NAME = "-DTORCH_EXTENSION_NAME="


class Command(msgspec.Struct, frozen=True):
    """One call of a compiler, as a tree's setup.py made it. `kind` is "compile" or "link"."""

    op: str
    kind: str
    role: str
    argv: tuple[str, ...]
    cwd: str


class Compile(msgspec.Struct, frozen=True):
    """One file to compile; `argv` lacks only where the object and its headers are noted. `source`
    is relative to the tree, `ops` all that are linked from it."""

    id: str
    role: str
    source: str
    argv: tuple[str, ...]
    ops: tuple[str, ...]

    @property
    def file(self) -> File:
        """What its cost is kept by."""
        found = (_CODE.search(word) for word in self.argv if "code=" in word)
        codes = tuple(match.group(1) for match in found if match)
        return File(self.source, self.role, codes, self.argv[0])

    @property
    def object(self) -> str:
        return f"objects/{posixpath.basename(self.source)}.{self.id}.o"


class Link(msgspec.Struct, frozen=True):
    """One op to link; `library` is where setup.py looks for it, below the tree."""

    id: str
    op: str
    argv: tuple[str, ...]
    objects: tuple[str, ...]
    library: str

    @property
    def output(self) -> str:
        return f"libraries/{posixpath.basename(self.library)}.{self.id}"


class Graph(msgspec.Struct, frozen=True):
    compiles: tuple[Compile, ...]
    links: tuple[Link, ...]


class Tools(msgspec.Struct, frozen=True):
    """The real compilers by role ("gcc", "g++", "nvcc"), and a text that changes with them."""

    programs: Mapping[str, str]
    stamp: str

    @property
    def cxx(self) -> str:
        return self.programs["g++"]


class Places(msgspec.Struct, frozen=True):
    """Where the commands were recorded, and where they are to run: two folders of one layout."""

    recorded: str
    site: str

    def moved(self, word: str) -> str:
        return word.replace(f"{self.recorded}/", f"{self.site}/")


class Surroundings(msgspec.Struct, frozen=True):
    """`names_extension` tells whether a source reads the name of the op that it is built for: one
    that does not is compiled once for all ops. `renamed` are beginnings of paths, and what a
    library says instead; `packages` is the environment's site-packages."""

    tools: Tools
    policy: FlagPolicy
    places: Places
    names_extension: Callable[[str], bool]
    renamed: tuple[tuple[str, str], ...] = ()
    packages: str = "/nowhere"


def make_graph(commands: Iterable[Command], around: Surroundings) -> Graph:
    """Merge equal compiles, and link each op from what it needs."""
    compiles: dict[str, Compile] = {}
    made: dict[tuple[str, str], str] = {}
    links: list[Link] = []
    for command in commands:
        if command.kind == "compile":
            one = _compile(command, around)
            before = compiles.get(one.id)
            ops = dict.fromkeys([*(before.ops if before else ()), command.op])
            compiles[one.id] = msgspec.structs.replace(one, ops=tuple(ops))
            made[command.op, _absolute(_output(command.argv), command.cwd)] = one.id
        else:
            links.append(_link(command, around, compiles, made))
    return Graph(tuple(compiles.values()), tuple(links))


def _compile(command: Command, around: Surroundings) -> Compile:
    words = _whole_paths(_without_output(_without_noting(command.argv)), command.cwd)
    source = next(word for word in words if word.endswith(_SOURCES) and not word.startswith("-"))
    dropped = {source, *_SAYS_COMPILE}
    flags = [word for word in words if word not in dropped and not _for_linker(word)]
    relative = posixpath.relpath(_absolute(source, command.cwd), f"{around.places.recorded}/tree")
    if not around.names_extension(relative):
        flags = [word for word in flags if not word.startswith(_EXTENSION_NAME)]
    renamed = [f"-ffile-prefix-map={old}={new}" for old, new in around.renamed]
    if command.role == "nvcc":
        flags = nvcc_flags(flags, around.policy, around.tools.cxx)
        flags += [word for each in renamed for word in ("-Xcompiler", each)]
    else:
        flags = host_flags(flags, around.policy) + renamed
    file = f"{around.places.site}/tree/{relative}"
    program = around.tools.programs[command.role]
    argv = (program, *map(around.places.moved, flags), "-c", file)
    key = _digest([around.tools.stamp, *argv])
    return Compile(key, command.role, relative, argv, (command.op,))


def _link(
    command: Command,
    around: Surroundings,
    compiles: Mapping[str, Compile],
    made: Mapping[tuple[str, str], str],
) -> Link:
    library = _output(command.argv)
    tree = f"{around.places.recorded}/tree"
    relative = posixpath.relpath(_absolute(library, command.cwd), tree)
    objects, argv = [], [around.tools.programs[command.role]]
    words = _whole_paths(_without_output(command.argv), command.cwd)
    place = _BUILD_FOLDER.sub("", relative)
    words = with_run_paths(link_flags(words, around.policy), place, around.packages)
    for word in words:
        key = made.get((command.op, _absolute(word, command.cwd)), "")
        if key:
            objects.append(compiles[key].object)
        argv.append(f"{around.places.site}/{objects[-1]}" if key else around.places.moved(word))
    key = _digest([around.tools.stamp, *argv, relative])
    return Link(key, command.op, tuple(argv), tuple(objects), relative)


def _for_linker(word: str) -> bool:
    """Libraries, which some ops give to their compiles as well, where they change nothing."""
    return (word.startswith("-l") and not word.startswith("-lineinfo")) or word.startswith("-L")


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def _absolute(path: str, cwd: str) -> str:
    return posixpath.normpath(posixpath.join(cwd, path))


def _whole_paths(argv: Sequence[str], cwd: str) -> list[str]:
    """The folders that options name by their whole path; -I, -L and -l as one word with theirs.

    >>> _whole_paths(["-I", "x", "-Ly/../z", "-isystem", "x", "-I/abs", "-l", "aio"], "/tree")
    ['-I/tree/x', '-L/tree/z', '-isystem', '/tree/x', '-I/abs', '-laio']
    """
    out: list[str] = []
    words = iter(argv)
    for word in words:
        before = out[-1] if out else ""
        option = word[:2] if word.startswith(("-I", "-L")) else ""
        path = next(words, "") if word in {"-I", "-L", "-l"} else word[len(option) :]
        if (option or before in _SEARCHED) and not path.startswith(("/", "=")):
            path = _absolute(path, cwd)
        out.append(f"{word}{path}" if word == "-l" else f"{option}{path}")
    return out


def _output(argv: Sequence[str]) -> str:
    return argv[argv.index("-o") + 1]


def _without_output(argv: Sequence[str]) -> list[str]:
    place = argv.index("-o")
    return [*argv[:place], *argv[place + 2 :]]


def _without_noting(argv: Sequence[str]) -> list[str]:
    """
    >>> _without_noting(["-MMD", "-MF", "a.o.d", "-O3", "--dependency-output", "b.d"])
    ['-O3']
    """
    out: list[str] = []
    words = iter(argv)
    for word in words:
        if word in _NOTING:
            next(words, None)
        elif word not in _NOTING_ALONE:
            out.append(word)
    return out
