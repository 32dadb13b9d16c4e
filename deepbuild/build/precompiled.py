"""Precompiled headers: torch's headers, parsed once for all files with the same flags.

Parsing <torch/extension.h> is half of what a small op's C++ file takes. Only gcc's: it checks by
itself whether a header fits a compile, and reads the plain one where it does not. The result is the
same either way, so that this is no part of an object's identity.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from deepbuild.build.graph import Compile

HEADER = "torch/extension.h"
LEAST_USERS = 4  # one costs what three compiles save: 73 s, and 27 s of each 54 s, as measured
SECONDS, MEMORY = 40.0, 2 * 2**30  # that one takes
_DIRECTIVE = re.compile(
    r'^\s*#\s*(?:include\s*[<"]([^>"]+)[>"]|(?:define|undef|pragma)\s+(\w+))', re.M
)
_GUARD = re.compile(r"^\s*#\s*ifndef\s+(\w+)\s+#\s*define\s+\1\s*$", re.M)
_DECIDES_NOTHING = {"", "once", "NOMINMAX"}  # the last one only for <windows.h>
# What may differ between a header and its user: where the user's own headers are, its macros (gcc
# looks at those that the header read), warnings.
_FREE = ("-I", "-D", "-U", "-W", "-isystem")

Read = Callable[[str], str | None]


class Precompiled(msgspec.Struct, frozen=True):
    """A header to precompile; `argv` lacks only the output, `users` are ids of compiles."""

    id: str
    argv: tuple[str, ...]
    users: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{HEADER}, precompiled for {len(self.users)} files"

    @property
    def plain(self) -> str:
        """The file that users name; gcc takes the precompiled one beside it."""
        return f"headers/{self.id}/torch_extension.h"

    @property
    def output(self) -> str:
        return f"{self.plain}.gch"


def share_headers(compiles: Iterable[Compile], read: Read, least: int) -> list[Precompiled]:
    """The headers that are worth it.

    Args:
        read: the text of a file, None if there is none.
        least: so many users pay for a header.
    """
    groups: dict[tuple[str, ...], list[Compile]] = defaultdict(list)
    for one in compiles:
        if one.role != "nvcc" and not _is_clang(one) and includes_torch(one, read):
            groups[_decisive(one.argv)].append(one)
    return [_header(group) for group in groups.values() if len(group) >= least]


def _is_clang(one: Compile) -> bool:
    """It refuses a header that does not fit, where gcc only does without."""
    return "clang" in posixpath.basename(one.argv[0])


def _decisive(argv: Sequence[str]) -> tuple[str, ...]:
    """The compiler, and the flags that must be the same."""
    return (argv[0], *dict.fromkeys(word for word in argv[1:-2] if not word.startswith(_FREE)))


def _header(group: Sequence[Compile]) -> Precompiled:
    first = group[0].argv
    common = set(first).intersection(*(one.argv for one in group))
    flags = [word for word in first[1:-2] if word in common or word.startswith("-I")]
    argv = (first[0], *flags, "-x", "c++-header")
    key = hashlib.sha256(json.dumps(argv).encode()).hexdigest()[:16]
    return Precompiled(key, argv, tuple(one.id for one in group))


def includes_torch(one: Compile, read: Read) -> bool:
    """Whether a file includes the header, itself or through headers of the tree: others would gain
    what they did not ask for. One that defines a macro before that does not count: precompiled,
    the header comes first, and would not see it."""
    source = one.argv[-1]
    tree = source.removesuffix(one.source)
    folders = [word[2:] for word in one.argv if f"{word}/".startswith(f"-I{tree}")]
    seen: set[str] = set()

    def begins_with_torch(path: str) -> bool | None:
        """None if a file has neither the header nor a macro in it."""
        for name, decided in _DIRECTIVE.findall(_GUARD.sub("", read(path) or "")):
            if name == HEADER or decided not in _DECIDES_NOTHING:
                return bool(name)
            found = _header_of_tree(name, [posixpath.dirname(path), *folders], tree, read)
            if found and found not in seen:
                seen.add(found)
                inside = begins_with_torch(found)
                if inside is not None:
                    return inside
        return None

    return bool(begins_with_torch(source))


def _header_of_tree(name: str, folders: Iterable[str], tree: str, read: Read) -> str:
    """A header of the tree, "" if it is another's: what the system's and torch's own headers
    include is theirs."""
    places = (posixpath.normpath(f"{folder}/{name}") for folder in folders if name)
    ours = (place for place in places if place.startswith(tree))
    return next((place for place in ours if read(place) is not None), "")
