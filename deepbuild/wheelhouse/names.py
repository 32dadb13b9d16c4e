"""File names of wheels: what they say, and which of them may be used as a file name at all."""

from __future__ import annotations

import re

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

METADATA_SUFFIX = ".metadata"
MANIFEST_SUFFIX = ".deepbuild.json"

_PLAIN = re.compile(r"[A-Za-z0-9_.+!-]+\.whl")
_HALF = (".part", ".tmp")


def parse_name(filename: str) -> tuple[str, str]:
    """The project and version that a wheel's name says, as they are compared.

    >>> parse_name("DeepSpeed-0.19.08+cu130-py3-none-any.whl")
    ('deepspeed', '0.19.8+cu130')

    Raises:
        ValueError: not the name of a wheel; tags may hold anything for `packaging`, "../" too.
    """
    if not _PLAIN.fullmatch(filename):
        raise ValueError("its name is not that of a wheel")
    try:
        project, version, _, _ = parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise ValueError(f"its name is not that of a wheel: {error}") from None
    return str(project), str(version)


def is_wheel_of(filename: str, project: str) -> bool:
    """Whether a file name is that of a wheel of a project (named as `normal` names it).

    >>> is_wheel_of("deepspeed-0.19.8.tar.gz", "deepspeed")
    False
    """
    try:
        return parse_name(filename)[0] == project
    except ValueError:
        return False


def normal(project: str) -> str:
    """A project's name as indexes use it.

    >>> normal("Deep.Speed")
    'deep-speed'

    Raises:
        ValueError: no name of a project.
    """
    name = str(canonicalize_name(project))
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"{project!r} is no name of a project")
    return name


def may_be_wheel(filename: str) -> bool:
    """Whether a file in a folder is looked at: not what is hidden or half-written.

    >>> may_be_wheel("a.whl"), may_be_wheel(".a.whl"), may_be_wheel("a.whl.part")
    (True, False, False)
    """
    return filename.endswith(".whl") and not filename.startswith(".") and not _is_half(filename)


def _is_half(filename: str) -> bool:
    return filename.removesuffix(".whl").endswith(_HALF)
