"""Reads a table of this package: groups of rows, each group under the source of its rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Row = TypeVar("Row")


@cache
def read_table(name: str) -> Mapping[str, Any]:
    """The parsed TOML of ``name`` (no suffix), parsed once; callers must not change it.

    Raises FileNotFoundError for a table that this package lacks.
    """
    text = Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def load_rows(name: str, make: Callable[..., Row]) -> tuple[Row, ...]:
    """The rows of table ``name`` in file order, each made by ``make(**cells, source=...)``.

    A misspelt cell is a TypeError of ``make``: a broken table can't load quietly.
    """
    return tuple(make(**cells, source=source) for cells, source in _cells(name))


def _cells(name: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    table = read_table(name)
    columns = table.get("columns", ())
    for group in table["group"]:
        for row in group["rows"]:
            # A long table names its columns once: shorter to read, and quicker to parse.
            yield (dict(zip(columns, row, strict=True)) if columns else row), group["source"]
