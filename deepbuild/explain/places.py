"""Which op and which file a line of a build's log is about."""

from __future__ import annotations

import re

_FILE = re.compile(
    r"(?:^|[\s'\"(\[/\\])((?:csrc|deepspeed|op_builder)[/\\][\w./\\+-]+\.(?:cuh?|cpp|cc|c|h|hpp|py|hip|o))\b"
)
_ANY_FILE = re.compile(r"(?:^|[\s'\"])([\w./+-]+\.(?:cuh?|cpp|cc|cxx|c|h|hpp|hip))(?=[:(]\d)")
# What names an op, in the commands and messages of torch, DeepSpeed, setuptools and deepbuild.
_OP = re.compile(
    rb"-DTORCH_EXTENSION_NAME=(\w+)|[Bb]uilding extension module (\w+)"
    rb"|building 'deepspeed\.ops\.(?:\w+\.)*(\w+)' extension|torch_extensions/[^\s/]+/(\w+)/"
    rb"|[Uu]nable to (?:pre-compile|load) (\w+)|Building extension '(\w+)'|(\w+_op)\.cpython-"
)
_HERE = re.compile(
    r"(\w+)(?:_op)?\.(?:cpython-\S+\.)?so\b|Error building extension '(\w+)'"
    r"|torch_extensions/[^\s/]+/(\w+)/"
)
_NO_OPS = {"lib", "libc", "libm"}


def op_of(text: str, before: bytes) -> str:
    """The op that a line names, else the last one that was named before it; "" if none was."""
    here = _HERE.search(text)
    named = next((name for name in here.groups() if name), "") if here else ""
    if named and not named.startswith("lib"):
        return _bare(named)
    if here and named:
        return ""
    found = b""
    for match in _OP.finditer(before):
        found = next(name for name in match.groups() if name)
    return _bare(found.decode("ascii", "replace"))


def _bare(name: str) -> str:
    """
    >>> _bare("cpu_adam_op"), _bare("async_io")
    ('cpu_adam', 'async_io')
    """
    return name.removesuffix("_op")


def file_of(text: str) -> str:
    """The source file that a line names, "" if it names none."""
    found = _FILE.search(text)
    if found and "torch/" in text[: found.start(1)].rsplit(" ", 1)[-1]:  # torch has a csrc as well
        found = None
    found = found or _ANY_FILE.search(text)
    return found[1] if found else ""
