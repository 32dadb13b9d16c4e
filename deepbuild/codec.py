"""Nouns <-> JSON: the only (de)serialiser. Errors name the file, the field and what was wanted."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeVar

import msgspec

from deepbuild.errors import UsageError
from deepbuild.model import (
    MACHINE_SCHEMA,
    MANIFEST_SCHEMA,
    NODE_SCHEMA,
    PLAN_SCHEMA,
    VERIFICATION_SCHEMA,
    WHEEL_SCHEMA,
    BuildPlan,
    Machine,
    Manifest,
    NodeRecord,
    Verification,
    Wheel,
    replace,
)

Noun = TypeVar("Noun", Machine, BuildPlan, Wheel, Manifest, Verification, NodeRecord)
Any_ = TypeVar("Any_")

SCHEMAS: dict[type, int] = {
    Machine: MACHINE_SCHEMA,
    BuildPlan: PLAN_SCHEMA,
    Wheel: WHEEL_SCHEMA,
    Manifest: MANIFEST_SCHEMA,
    Verification: VERIFICATION_SCHEMA,
    NodeRecord: NODE_SCHEMA,
}


class _Header(msgspec.Struct):
    schema: int


def dump(noun: object) -> str:
    """A noun as indented JSON, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(noun), indent=2).decode() + "\n"


def load(text: str | bytes, kind: type[Noun], origin: str) -> Noun:
    """Read a noun back.

    Raises:
        UsageError: not JSON, not this noun, or from a newer deepbuild; `origin` names the file.
    """
    _check_schema(text, kind, origin)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _unreadable(origin, kind, str(error)) from None


def load_file(path: Path, kind: type[Noun]) -> Noun:
    """As `load`, from a file.

    Raises:
        UsageError: also when the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}",
            found=error.strerror or str(error),
            wanted=f"a {_name(kind)} saved by deepbuild as JSON",
        ) from None
    return load(data, kind, str(path))


def decode(text: str | bytes, kind: type[Any_]) -> Any_:
    """Decode a part of a noun (a child script's answer, a cache entry).

    Raises:
        ValueError: when `text` is not that part.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def identity(noun: object) -> str:
    """A short hash of a noun's content, the same on every machine."""
    data = msgspec.json.encode(noun, order="sorted")
    return hashlib.sha256(data).hexdigest()[:16]


def plan_id(plan: BuildPlan) -> str:
    """The id of a plan: the hash of everything in it but the id itself."""
    return identity(replace(plan, id=""))


def _check_schema(text: str | bytes, kind: type, origin: str) -> None:
    try:
        schema = msgspec.json.decode(text, type=_Header).schema
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _unreadable(origin, kind, str(error)) from None
    if schema != SCHEMAS[kind]:
        raise UsageError(
            f"{origin} has another schema",
            found=f"schema {schema}",
            wanted=f"schema {SCHEMAS[kind]} of a {_name(kind)}",
            hint="pip install -U deepbuild" if schema > SCHEMAS[kind] else "make the file again",
        )


def _unreadable(origin: str, kind: type, why: str) -> UsageError:
    return UsageError(
        f"{origin} is not a {_name(kind)}",
        found=why,
        wanted=f"a whole {_name(kind)} saved by deepbuild as JSON",
        hint="make the file again (deepbuild plan -o FILE, deepbuild probe -o FILE)",
    )


def _name(kind: type) -> str:
    return "plan" if kind is BuildPlan else kind.__name__.lower()
