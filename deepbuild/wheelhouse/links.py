"""Pages of links to wheels, as text: HTML (PEP 503, find-links) and JSON (PEP 691)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import parse_qs, unquote, urljoin, urlsplit

import msgspec

from deepbuild import codec
from deepbuild.wheelhouse.names import MANIFEST_SUFFIX, METADATA_SUFFIX, is_wheel_of

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SCHEMES = {"http": ("http", "https"), "https": ("http", "https"), "file": ("file",)}
"""Where a page may link to: one on a server knows nothing of files here."""


class Candidate(msgspec.Struct, frozen=True):
    """A wheel that can be had. Hashes are "" and `size` is -1 where they are not told; so are the
    addresses of METADATA and of deepbuild's manifest, which then are in the wheel only."""

    filename: str
    url: str
    sha256: str = ""
    size: int = -1
    metadata_url: str = ""
    metadata_sha256: str = ""
    manifest_url: str = ""
    manifest_sha256: str = ""
    requires_python: str = ""


class _File(msgspec.Struct):
    """One file of a JSON page; what is not told of it is empty."""

    filename: str
    url: str
    hashes: dict[str, str] = {}
    size: int | None = None
    yanked: bool | str | None = None
    requires_python: str | None = msgspec.field(name="requires-python", default=None)
    core: bool | dict[str, str] | None = msgspec.field(name="core-metadata", default=None)
    older: bool | dict[str, str] | None = msgspec.field(name="dist-info-metadata", default=None)
    manifest: dict[str, str] | None = msgspec.field(name="_deepbuild-manifest", default=None)


class _Meta(msgspec.Struct):
    version: str = msgspec.field(name="api-version")


class _Page(msgspec.Struct):
    meta: _Meta
    files: list[_File] = []


class _Anchors(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__()
        self.base, self.version, self.tags = base, "1.0", 0
        self.anchors: list[dict[str, str]] = []
        self._has_base = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.tags += 1
        if tag == "base" and "href" in said and not self._has_base:
            self.base, self._has_base = urljoin(self.base, said["href"]), True
        elif tag == "meta" and said.get("name") == "pypi:repository-version":
            self.version = said.get("content", "")
        elif tag == "a" and "href" in said:
            self.anchors.append(said)


def from_html(text: str, url: str, project: str) -> tuple[Candidate, ...]:
    """The wheels of a project that a page links to.

    >>> page = '<a href="../a-1-py3-none-any.whl#sha256=x" data-core-metadata="true">a</a>'
    >>> (found,) = from_html(page, "https://host/simple/a/", "a")
    >>> found.url, found.metadata_url.rpartition("/")[2]
    ('https://host/simple/a-1-py3-none-any.whl', 'a-1-py3-none-any.whl.metadata')

    Raises:
        ValueError: no HTML, or of a version that is not known.
    """
    parser = _Anchors(url)
    try:
        parser.feed(text)
    except Exception as error:  # an AssertionError, for one, where markup is none
        raise ValueError(f"HTML that cannot be read: {error}") from None
    if not parser.tags:
        raise ValueError("no HTML")
    _check_version(parser.version)
    rows = (_of_anchor(said, parser.base, project) for said in parser.anchors)
    return _first_of_each(rows)


def from_json(body: bytes, url: str, project: str) -> tuple[Candidate, ...]:
    """As `from_html`.

    Raises:
        ValueError: not JSON, not such a page, or of a version that is not known.
    """
    page = codec.decode(body, _Page)
    _check_version(page.meta.version)
    return _first_of_each(_of_file(file, url, project) for file in page.files)


def _check_version(version: str) -> None:
    if version.partition(".")[0] != "1":
        raise ValueError(f"version {version[:20]!r} of the index format, which is not known")


def _first_of_each(rows: Iterator[Candidate | None]) -> tuple[Candidate, ...]:
    found: dict[str, Candidate] = {}
    for row in rows:
        if row:
            found.setdefault(row.filename, row)
    return tuple(found.values())


def _of_anchor(said: dict[str, str], base: str, project: str) -> Candidate | None:
    linked = _linked(base, said["href"])
    filename = unquote(linked[0].partition("?")[0].rpartition("/")[2]) if linked else ""
    if not linked or "data-yanked" in said or not is_wheel_of(filename, project):
        return None
    url, fragment = linked
    core = said.get("data-core-metadata", said.get("data-dist-info-metadata", ""))
    size = said.get("data-deepbuild-size", "")
    return _candidate(
        Candidate(
            filename=filename,
            url=url,
            sha256=_hash(parse_qs(fragment).get("sha256", [""])[0]),
            size=int(size) if re.fullmatch(r"[0-9]{1,15}", size) else -1,
            requires_python=said.get("data-requires-python", ""),
        ),
        metadata=core.partition("sha256=")[2] if core else None,
        manifest=said.get("data-deepbuild-manifest", "").partition("sha256=")[2] or None,
    )


def _of_file(file: _File, base: str, project: str) -> Candidate | None:
    linked = _linked(base, file.url)
    yanked = file.yanked not in {None, False}
    if not linked or yanked or not is_wheel_of(file.filename, project):
        return None
    core = file.core if file.core is not None else file.older
    hashes = core if isinstance(core, dict) else {}
    return _candidate(
        Candidate(
            filename=file.filename,
            url=linked[0],
            sha256=_hash(file.hashes.get("sha256", "")),
            size=file.size if file.size is not None and file.size >= 0 else -1,
            requires_python=file.requires_python or "",
        ),
        metadata=hashes.get("sha256", "") if core else None,
        manifest=file.manifest.get("sha256", "") if file.manifest else None,
    )


def _candidate(bare: Candidate, metadata: str | None, manifest: str | None) -> Candidate:
    """With what lies beside the wheel, each by its hash ("" if not told), None if it is not."""
    return msgspec.structs.replace(
        bare,
        metadata_url="" if metadata is None else f"{bare.url}{METADATA_SUFFIX}",
        metadata_sha256=_hash(metadata or ""),
        manifest_url="" if manifest is None else f"{bare.url}{MANIFEST_SUFFIX}",
        manifest_sha256=_hash(manifest or ""),
    )


def _linked(base: str, href: str) -> tuple[str, str] | None:
    """Where a link leads, without its fragment, and that; None where such a page may not lead."""
    try:
        parts = urlsplit(urljoin(base, href.strip()))
        allowed = _SCHEMES.get(urlsplit(base).scheme, ())
    except ValueError:  # not an address at all
        return None
    if parts.scheme not in allowed:
        return None
    return parts._replace(fragment="").geturl(), parts.fragment


def _hash(text: str) -> str:
    """A sha256 as it is compared, "" for what is none."""
    return text.lower() if _SHA256.fullmatch(text.lower()) else ""
