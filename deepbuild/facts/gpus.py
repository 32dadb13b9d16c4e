"""GPU product names and their compute capabilities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache

import msgspec

from deepbuild.facts._load import load_rows, read_table


class GpuRow(msgspec.Struct, frozen=True):
    """One product: NVIDIA's name, compute capability ("8.6"), architecture ("Ampere")."""

    name: str
    capability: str
    arch: str
    source: str


@cache
def gpus() -> tuple[GpuRow, ...]:
    """Every product of the table (source: NVIDIA's capability pages, per row)."""
    return load_rows("gpus", GpuRow)


def find_gpus(query: str) -> tuple[GpuRow, ...]:
    """The products that a person or nvidia-smi means by ``query``; () where that is unknown.

    Case, vendor words, dashes and spaces don't matter. Whole words are matched, never parts of
    one, so "a10" isn't "a100"; what nvidia-smi adds behind a name is ignored.

    >>> [row.name for row in find_gpus("NVIDIA A100-SXM4-80GB")]
    ['NVIDIA A100']
    >>> [row.name for row in find_gpus("rtx4090")], find_gpus("a800")
    (['GeForce RTX 4090'], ())
    >>> sorted({row.capability for row in find_gpus("rtx 6000")})
    ['7.5', '8.9']
    """
    words = _words(query)
    rows = _of_named_arch(words)
    if len(words) == 1 and words[0] in _arches():
        return rows
    for count in range(len(words), 0, -1):
        key = "".join(words[:count])
        found = _named(key, rows) or _containing(key, rows)
        if found:
            return () if key in _hints("reused") else found
    return ()


def capability_of(query: str) -> str | None:
    """The compute capability meant by ``query``; None where unknown, or where several could be.

    >>> capability_of("Tesla V100-SXM2-32GB"), capability_of("hopper"), capability_of("rtx 6000")
    ('7.0', '9.0', None)
    """
    capabilities = {row.capability for row in find_gpus(query)}
    return capabilities.pop() if len(capabilities) == 1 else None


def nearest_gpus(query: str) -> list[str]:
    """Up to three product names that look like ``query``, best first, to suggest in an error.

    >>> nearest_gpus("a1000")[0]
    'NVIDIA A100'
    """
    names = {"".join(_words(row.name)): row.name for row in gpus()}
    return [names[key] for key in get_close_matches("".join(_words(query)), names, cutoff=0.5)]


def _words(text: str) -> tuple[str, ...]:
    found = re.findall(r"[a-z0-9]+", text.lower())
    return tuple(word for word in found if word not in _hints("vendor_words"))


@cache
def _hints(name: str) -> frozenset[str]:
    return frozenset(read_table("gpus")[name])


@cache
def _arches() -> dict[str, str]:
    return {row.arch.lower(): row.arch for row in gpus()}


def _of_named_arch(words: tuple[str, ...]) -> tuple[GpuRow, ...]:
    """All rows, or those of the architecture that is said: "rtx 2000 blackwell" is no Ada."""
    named = {_arches()[word] for word in words if word in _arches()}
    return tuple(row for row in gpus() if not named or row.arch in named)


def _named(key: str, rows: tuple[GpuRow, ...]) -> tuple[GpuRow, ...]:
    return tuple(row for row in rows if "".join(_words(row.name)) == key)


def _containing(key: str, rows: tuple[GpuRow, ...]) -> tuple[GpuRow, ...]:
    """The rows with ``key`` as consecutive whole words, one of which tells products apart."""
    return tuple(row for row in rows if key in _telling_runs(row.name))


@cache
def _telling_runs(name: str) -> frozenset[str]:
    return frozenset("".join(run) for run in _runs(_words(name)) if set(run) - _hints("line_words"))


def _runs(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            yield words[start:end]
