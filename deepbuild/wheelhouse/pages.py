"""The pages of an index as text: HTML (PEP 503) for any web server and file://, JSON (PEP 691, 700)
beside it. All links are relative, so that the folder can be moved.

What deepbuild adds, the standards leave to each index: a data- attribute and a key with a leading
underscore that name the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any
from urllib.parse import quote

import msgspec

from deepbuild.wheelhouse.memory import Learned

GENERATOR = '<meta name="generator" content="deepbuild">'
_API = "1.1"

Wheels = Sequence[tuple[str, Learned]]
"""File names with what was learned of them."""


def root_html(projects: Sequence[str]) -> str:
    """The page that names all projects."""
    return _html("Simple index", [f'<a href="{name}/">{name}</a><br>' for name in projects])


def root_json(projects: Sequence[str]) -> str:
    """As `root_html`."""
    return _json({"projects": [{"name": name} for name in projects]})


def project_html(project: str, wheels: Wheels) -> str:
    """The page that links the wheels of a project."""
    return _html(f"Links for {project}", [_anchor(name, learned) for name, learned in wheels])


def project_json(project: str, wheels: Wheels, now: float) -> str:
    """As `project_html`."""
    versions = sorted({learned.version for _, learned in wheels})
    files = [_file(name, learned, now) for name, learned in wheels]
    return _json({"name": project, "versions": versions, "files": files})


def _html(title: str, lines: list[str]) -> str:
    head = [
        '<!DOCTYPE html>\n<html>\n<head>\n<meta charset="utf-8">',
        GENERATOR,
        f'<meta name="pypi:repository-version" content="{_API}">',
        f"<title>{title}</title>\n</head>\n<body>\n<h1>{title}</h1>",
    ]
    return "\n".join([*head, *lines, "</body>\n</html>\n"])


def _json(content: Mapping[str, Any]) -> str:
    return msgspec.json.encode({"meta": {"api-version": _API}, **content}).decode() + "\n"


def _anchor(name: str, learned: Learned) -> str:
    metadata = f"sha256={learned.metadata.sha256}"
    values = {
        "href": f"{_address(name)}#sha256={learned.sha256}",
        "data-requires-python": learned.requires_python,
        "data-core-metadata": metadata,
        "data-dist-info-metadata": metadata,  # its name until PEP 714, for the pip of then
        "data-deepbuild-manifest": f"sha256={learned.manifest.sha256}" if learned.manifest else "",
        "data-deepbuild-size": str(learned.size),
    }
    said = " ".join(f'{key}="{escape(value)}"' for key, value in values.items() if value)
    return f"<a {said}>{escape(name)}</a><br>"


def _address(name: str) -> str:
    """From the page of a project. A "+" is quoted: some stores read it as a space.

    >>> _address("deepspeed-0.19.8+cu130-py3-none-any.whl")
    '../../deepspeed-0.19.8%2Bcu130-py3-none-any.whl'
    """
    return f"../../{quote(name)}"


def _file(name: str, learned: Learned, now: float) -> dict[str, Any]:
    """One wheel in JSON. The older name of core-metadata is not given: pip 22.3 to 23.1 fails
    where it meets it there (PEP 714)."""
    file: dict[str, Any] = {
        "filename": name,
        "url": _address(name),
        "hashes": {"sha256": learned.sha256},
        "size": learned.size,
        "core-metadata": {"sha256": learned.metadata.sha256},
    }
    if learned.requires_python:
        file["requires-python"] = learned.requires_python
    if learned.manifest:
        file["_deepbuild-manifest"] = {"sha256": learned.manifest.sha256}
    if upload := _upload_time(learned.mtime_ns, now):
        file["upload-time"] = upload
    return file


def _upload_time(mtime_ns: int, now: float) -> str:
    """When the file was written, "" where its time cannot be that.

    >>> _upload_time(1_700_000_000_500_000_000, 1.8e9), _upload_time(2 * 10**18, 1.8e9)
    ('2023-11-14T22:13:20.500000Z', '')
    """
    seconds, rest = divmod(mtime_ns, 10**9)
    if not 0 < seconds <= now:
        return ""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"
