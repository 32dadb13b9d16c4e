"""What wheels a place offers, and what they say of themselves, without fetching them whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from deepbuild.addresses import without_secrets
from deepbuild.wheelhouse.failures import check_hash, no_page, no_place, unreadable
from deepbuild.wheelhouse.folder import find_wheels
from deepbuild.wheelhouse.inside import MOST_BYTES, Inside, read_inside
from deepbuild.wheelhouse.links import Candidate, from_html, from_json
from deepbuild.wheelhouse.memory import SIMPLE, Learned, recall
from deepbuild.wheelhouse.names import MANIFEST_SUFFIX, METADATA_SUFFIX, is_wheel_of, normal

if TYPE_CHECKING:
    from deepbuild.index import IndexConfig
    from deepbuild.wheelhouse.web import Answer, Web

Config = Callable[[], "IndexConfig"]
"""Asked for pip's configuration only where a server is asked."""

_JSON = ("application/vnd.pypi.simple.v1+json", "application/json")
_HTML = ("text/html", "application/vnd.pypi.simple.v1+html")
_ACCEPT = f"{_JSON[0]}, {_HTML[1]};q=0.2, {_HTML[0]};q=0.1"


def list_wheels(location: str, project: str, config: Config | None = None) -> tuple[Candidate, ...]:
    """The wheels of a project at a place, in the order of their listing.

    Args:
        location: a folder of wheels, or the address (file:, http:, https:) of one, of an index, of
            what holds `simple/`, or of a page of links.

    Raises:
        UsageError: no such folder, or an address of another kind.
        ProbeError: the server gives no answer in time, or none that can be read.
    """
    try:
        project = normal(project)
        if urlsplit(location).scheme in {"http", "https"}:
            return _on_the_web(_web(config), location, project)
        return _in_place(_path(location), project)
    except ValueError as error:
        raise no_place(location, str(error)) from None
    except OSError as error:
        raise no_place(location, error.strerror or str(error)) from None


def read_manifest(candidate: Candidate, config: Config | None = None) -> bytes | None:
    """deepbuild's manifest of a wheel; None if it has none.

    Raises:
        ProbeError: it cannot be read, or is not the one that the index names.
    """
    beside = _beside(candidate.manifest_url, candidate.manifest_sha256, config)
    return beside if beside is not None else _inside(candidate, config).manifest


def read_metadata(candidate: Candidate, config: Config | None = None) -> bytes:
    """METADATA of a wheel. Raises as `read_manifest`."""
    beside = _beside(candidate.metadata_url, candidate.metadata_sha256, config)
    return beside if beside is not None else _inside(candidate, config).metadata


# ------------------------------------------------------------ a folder


def _in_place(path: Path, project: str) -> tuple[Candidate, ...]:
    """A page, a folder of wheels, or one of an index whose wheels are elsewhere."""
    if not path.is_dir():
        return _local_page(path, project)
    wheels, _ = find_wheels(path)
    if not wheels and (page := _page_in(path, project)):
        return _local_page(page, project)
    memory = recall(path)
    mine = [wheel for wheel in wheels if is_wheel_of(wheel.name, project)]
    return tuple(_of_file(wheel, memory.get(wheel.name)) for wheel in mine)


def _page_in(folder: Path, project: str) -> Path | None:
    places = (folder / project, folder / SIMPLE / project, folder)
    pages = (place / name for place in places for name in ("index.json", "index.html"))
    return next((page for page in pages if page.is_file()), None)


def _of_file(path: Path, learned: Learned | None) -> Candidate:
    """A wheel here; what an index told of it counts only while the file is the same."""
    url, size = path.as_uri(), path.stat().st_size
    if learned is None or not learned.holds(path):
        return Candidate(path.name, url, size=size)
    manifest = learned.manifest
    return Candidate(
        filename=path.name,
        url=url,
        sha256=learned.sha256,
        size=size,
        metadata_url=f"{url}{METADATA_SUFFIX}",
        metadata_sha256=learned.metadata.sha256,
        manifest_url=f"{url}{MANIFEST_SUFFIX}" if manifest else "",
        manifest_sha256=manifest.sha256 if manifest else "",
        requires_python=learned.requires_python,
    )


def _local_page(path: Path, project: str) -> tuple[Candidate, ...]:
    body = _read_some(path)
    if path.suffix == ".json":
        return from_json(body, path.as_uri(), project)
    return from_html(body.decode("utf-8", "replace"), path.as_uri(), project)


def _read_some(path: Path) -> bytes:
    """
    Raises:
        ValueError: more than any page or file beside a wheel is, or not a file.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file")
    with path.open("rb") as file:
        body = file.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES} bytes")
    return body


def _path(location: str) -> Path:
    """
    >>> _path("file:///srv/a%20b/simple/")
    PosixPath('/srv/a b/simple')

    Raises:
        ValueError: an address that is not on this machine.
    """
    if not location:
        raise ValueError("no name")
    if "://" not in location and not location.startswith("file:"):
        return Path(os.path.expanduser(location)).absolute()  # noqa: PTH111 (never raises)
    parts = urlsplit(location)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or not parts.path:
        raise ValueError(f"an address {parts.scheme}: that cannot be asked")
    return Path(unquote(parts.path))


# ------------------------------------------------------------ a server


def _on_the_web(web: Web, location: str, project: str) -> tuple[Candidate, ...]:
    """The project's page of an index, else the address itself as a page of links."""
    root = location.partition("#")[0].rstrip("/")
    pages = [f"{root}/{project}/", f"{root}/{SIMPLE}/{project}/", location]
    if root.endswith((".html", ".json")):
        pages = [location]
    absent = []
    for url in pages:
        answer = web.page(url, _ACCEPT)
        if answer.is_absent:
            absent.append(f"HTTP {answer.status} {answer.reason} for {without_secrets(url)}")
        elif found := _links(answer, project):
            return found
    if len(absent) == len(pages):
        raise no_page(location, "\n".join(absent))
    return ()


def _links(answer: Answer, project: str) -> tuple[Candidate, ...]:
    from deepbuild.wheelhouse.web import PAGE_SECONDS, within

    return within(PAGE_SECONDS, answer.url, lambda: _parsed(answer, project))


def _parsed(answer: Answer, project: str) -> tuple[Candidate, ...]:
    if answer.kind in _JSON:
        return from_json(answer.body, answer.url, project)
    if answer.kind in _HTML:
        return from_html(answer.text(), answer.url, project)
    raise ValueError(f"content of type {answer.kind[:80] or 'unknown'!r}, not {' or '.join(_HTML)}")


def _web(config: Config | None) -> Web:
    """With TLS and all that it takes: only where a server is asked."""
    from deepbuild.index import IndexConfig
    from deepbuild.wheelhouse.web import web_of

    return web_of(config() if config else IndexConfig())


# ------------------------------------------------------------ what a wheel says of itself


def _beside(url: str, sha256: str, config: Config | None) -> bytes | None:
    """A file beside a wheel, None where none is told or there."""
    if not url:
        return None
    content = _small(url, config)
    if content is not None:
        check_hash(url, hashlib.sha256(content).hexdigest(), sha256)
    return content


def _small(url: str, config: Config | None) -> bytes | None:
    if not url.startswith("file:"):
        return _web(config).small(url)
    try:
        return _read_some(_path(url))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise unreadable(url, str(error)) from None


def _inside(candidate: Candidate, config: Config | None) -> Inside:
    try:
        with _opened(candidate, config) as file:
            return read_inside(file, candidate.filename)
    except (OSError, ValueError) as error:
        raise unreadable(candidate.url, str(error)) from None


@contextmanager
def _opened(candidate: Candidate, config: Config | None) -> Iterator[IO[bytes]]:
    if candidate.url.startswith("file:"):
        with _path(candidate.url).open("rb") as file:
            yield file
    else:
        with _web(config).wheel(candidate.url, candidate.sha256) as file:
            yield file
