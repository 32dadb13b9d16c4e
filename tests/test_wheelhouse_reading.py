"""What wheels a place offers, and what they say of themselves; servers that answer badly."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from toy_wheels import JSON, MANIFEST, metadata, on_port, put_wheel, served, served_in_parts

from deepbuild.errors import DeepbuildError, ProbeError, UsageError
from deepbuild.index import IndexConfig
from deepbuild.wheelhouse import (
    Candidate,
    list_wheels,
    read_manifest,
    read_metadata,
    web,
    write_index,
)
from deepbuild.wheelhouse.links import from_html, from_json

NAME = "deepspeed-0.19.8-py3-none-any.whl"
SHA = "0123456789abcdef" * 4
PAGE = "https://host/simple/deepspeed/"


@pytest.fixture(autouse=True)
def _no_outer_settings(monkeypatch, tmp_path_factory):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path_factory.getbasetemp()))  # quick to read
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    web.web_of.cache_clear()


@pytest.fixture(scope="module")
def stock(tmp_path_factory) -> Path:
    """Two wheels, of which one has a manifest; large enough to be worth a part of them."""
    place = tmp_path_factory.mktemp("stock")
    noise = {"deepspeed/noise": os.urandom(2**18)}
    put_wheel(place, version="0.19.7+cu130", extra=noise)
    put_wheel(place, manifest=MANIFEST, extra=noise)
    put_wheel(place, "other", "1")
    return place


@pytest.fixture
def folder(tmp_path: Path, stock: Path) -> Path:
    return Path(shutil.copytree(stock, tmp_path / "a shelf"))


@pytest.fixture
def indexed(folder: Path) -> Path:
    write_index(folder)
    return folder


def names(found: tuple[Candidate, ...]) -> list[str]:
    return [candidate.filename for candidate in found]


BOTH = ["deepspeed-0.19.7+cu130-py3-none-any.whl", NAME]


def check_told(found: tuple[Candidate, ...], folder: Path) -> None:
    """All that an index of deepbuild's tells of its wheels, and that it is so."""
    assert names(found) == BOTH
    for each in found:
        content = (folder / each.filename).read_bytes()
        assert (each.sha256, each.size) == (hashlib.sha256(content).hexdigest(), len(content))
        assert each.requires_python == ">=3.8"
        assert each.metadata_url == f"{each.url}.metadata"
        assert len(each.metadata_sha256) == 64
    old, new = found
    assert (old.manifest_url, new.manifest_url) == ("", f"{new.url}.deepbuild.json")
    assert new.manifest_sha256 == hashlib.sha256(MANIFEST).hexdigest()
    assert (read_manifest(old), read_manifest(new)) == (None, MANIFEST)
    assert read_metadata(new) == metadata("deepspeed", "0.19.8")


# --- here


def test_folder_without_index_is_listed(folder):
    found = list_wheels(str(folder), "DeepSpeed")
    assert names(found) == BOTH
    assert [each.sha256 for each in found] == ["", ""]
    assert found[1].size == (folder / NAME).stat().st_size
    assert [read_manifest(each) for each in found] == [None, MANIFEST]
    assert b"Version: 0.19.7+cu130" in read_metadata(found[0])


@pytest.mark.parametrize("how", [str, Path.as_uri])
@pytest.mark.parametrize("below", ["", "simple", "simple/deepspeed/index.html"])
def test_index_here_tells_all(indexed, how, below):
    check_told(list_wheels(how(indexed / below), "deepspeed"), indexed)


def test_index_here_can_be_moved(indexed, tmp_path):
    moved = shutil.move(indexed, tmp_path / "moved")
    check_told(list_wheels(str(moved / "simple"), "deepspeed"), moved)


def test_page_of_links_on_disk_is_read(folder):
    page = folder / "links.html"
    page.write_text(f'<a href="{NAME}">wheel</a>')
    (found,) = list_wheels(str(page), "deepspeed")
    assert read_manifest(found) == MANIFEST


def test_wheel_that_changed_since_it_was_indexed_is_not_told_of_by_the_index(indexed):
    put_wheel(indexed, manifest=b"{}")
    found = list_wheels(str(indexed), "deepspeed")[1]
    assert (found.sha256, found.manifest_url) == ("", "")
    assert read_manifest(found) == b"{}"


def test_what_lay_beside_a_wheel_is_found_in_it(indexed):
    found = list_wheels(str(indexed), "deepspeed")[1]
    (indexed / f"{NAME}.deepbuild.json").unlink()
    assert read_manifest(found) == MANIFEST


def test_what_lies_beside_a_wheel_and_is_another_is_refused(indexed):
    found = list_wheels(str(indexed), "deepspeed")[1]
    (indexed / f"{NAME}.deepbuild.json").write_text("{}")
    with pytest.raises(ProbeError, match="not the file that the index names"):
        read_manifest(found)


def test_places_without_wheels_of_the_project(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    assert list_wheels(str(tmp_path / "empty"), "deepspeed") == ()
    assert list_wheels(str(folder), "torch") == ()


@pytest.mark.parametrize(
    "location",
    ["", "/gone", "ftp://host/simple", "s3://bucket", "file://host/simple", "file:", "http://["],
)
def test_place_that_is_none_is_a_usage_error(location):
    with pytest.raises(UsageError) as caught:
        list_wheels(location, "deepspeed")
    assert caught.value.wanted


@pytest.mark.parametrize("project", ["", "../x", "a/b", "deepspeed[x]"])
def test_project_that_is_none_is_a_usage_error(tmp_path, project):
    with pytest.raises(UsageError, match="no wheels that can be listed"):
        list_wheels(str(tmp_path), project)


@pytest.mark.parametrize("content", [b"", b"x" * 99, b"\xff\xfe"])
@pytest.mark.parametrize("name", ["index.html", "index.json"])
def test_page_on_disk_that_is_none_is_told(tmp_path, name, content):
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / name).write_bytes(content)
    with pytest.raises(UsageError, match="no wheels that can be listed"):
        list_wheels(str(tmp_path), "deepspeed")


def test_wheel_that_is_not_whole_or_gone_is_told(folder):
    found = list_wheels(str(folder), "deepspeed")[1]
    for spoil in (lambda path: path.write_bytes(b"PK"), Path.unlink):
        spoil(folder / NAME)
        with pytest.raises(ProbeError, match="cannot be read") as caught:
            read_metadata(found)
        assert NAME in caught.value.message


# --- pages as text


def links(page: str, url: str = PAGE) -> list[Candidate]:
    return list(from_html(page, url, "deepspeed"))


def test_html_link_with_all_that_can_be_told():
    (found,) = links(
        f'<A HREF="../../files/{NAME}#egg=x&amp;sha256={SHA.upper()}"'
        ' data-requires-python="&gt;=3.9"'
        f' data-core-metadata="sha256={SHA}" data-deepbuild-manifest="sha256={SHA}">x</A>'
    )
    url = f"https://host/files/{NAME}"
    assert found == Candidate(
        filename=NAME,
        url=url,
        sha256=SHA,
        metadata_url=f"{url}.metadata",
        metadata_sha256=SHA,
        manifest_url=f"{url}.deepbuild.json",
        manifest_sha256=SHA,
        requires_python=">=3.9",
    )


@pytest.mark.parametrize(
    ("page", "url"),
    [
        ('<a href="{}">', "https://host/simple/deepspeed/{}"),
        ('<a href=" {} ">', "https://host/simple/deepspeed/{}"),
        ('<a href="/{}">', "https://host/{}"),
        ('<a href="//cdn/{}">', "https://cdn/{}"),
        ('<a href="http://other/{}?token=1#x">', "http://other/{}?token=1"),
        ('<base href="/files/"><base href="/no/"><a href="{}">', "https://host/files/{}"),
        ('<base href="https://cdn/a/b"><a href="{}">', "https://cdn/a/{}"),
        ('<p><br/><a href="{}"><a href="elsewhere/{}">', "https://host/simple/deepspeed/{}"),
    ],
)
def test_html_addresses(page, url):
    (found,) = links(page.replace("{}", NAME))
    assert found.url == url.replace("{}", NAME)


@pytest.mark.parametrize(
    "anchor",
    [
        f'<a href="{NAME}" data-yanked>',
        f'<a href="{NAME}" data-yanked="broken">',
        f'<a name="{NAME}">',
        '<a href="deepspeed-0.19.8.tar.gz">',
        '<a href="deepspeed_kernels-0.19.8-py3-none-any.whl">',
        '<a href="torch-2-py3-none-any.whl">',
        '<a href="deepspeed-new-py3-none-any.whl">',
        '<a href="deepspeed-1-py3-none-..%2F..%2Fany.whl">',
        '<a href="deepspeed-1-py3-none-any%00.whl">',
        f'<a href="file:///srv/{NAME}">',
        f'<a href="ftp://host/{NAME}">',
        f'<a href="https://[host/{NAME}">',
        f'<!-- <a href="{NAME}"> -->',
        "<a href=''>",
    ],
)
def test_html_links_to_something_else(anchor):
    assert links(f"<html>{anchor}</a></html>") == []


def test_hash_and_size_that_are_none_are_not_told():
    row = f'<a href="{NAME}#sha256=123" data-deepbuild-size="-5" data-core-metadata="true">'
    (found,) = links(row)
    assert (found.sha256, found.size, found.metadata_sha256) == ("", -1, "")
    assert found.metadata_url.endswith(".metadata")


@pytest.mark.parametrize("text", ["", "\0" * 100, "not found", "{}", "<![x y", "<"])
def test_text_that_is_no_html_is_told(text):
    with pytest.raises(ValueError, match="HTML"):
        links(text)


def page_of(**file: object) -> bytes:
    row = {"filename": NAME, "url": f"../{NAME}", "hashes": {}, **file}
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "x", "files": [row]}).encode()


def test_json_file_with_all_that_can_be_told():
    body = page_of(
        **{"hashes": {"sha256": SHA, "md5": "x"}, "size": 5, "yanked": False, "gpg-sig": True},
        **{"requires-python": ">=3.9", "core-metadata": {"sha256": SHA}, "upload-time": "x"},
        **{"_deepbuild-manifest": {"sha256": SHA}},
    )
    (found,) = from_json(body, PAGE, "deepspeed")
    url = f"https://host/simple/{NAME}"
    assert found == Candidate(
        filename=NAME,
        url=url,
        sha256=SHA,
        size=5,
        metadata_url=f"{url}.metadata",
        metadata_sha256=SHA,
        manifest_url=f"{url}.deepbuild.json",
        manifest_sha256=SHA,
        requires_python=">=3.9",
    )


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ({}, False),
        ({"core-metadata": True}, True),
        ({"core-metadata": False, "dist-info-metadata": True}, False),
        ({"dist-info-metadata": {"sha256": SHA}}, True),
        ({"yanked": None, "requires-python": None, "size": None, "core-metadata": None}, False),
    ],
)
def test_json_file_with_little_told(file, told):
    (found,) = from_json(page_of(**file), PAGE, "deepspeed")
    assert bool(found.metadata_url) is told
    assert found.size == -1


@pytest.mark.parametrize(
    "file",
    [{"yanked": True}, {"yanked": "broken"}, {"filename": "../x.whl"}, {"url": "file:///x.whl"}],
)
def test_json_files_that_are_left_out(file):
    assert from_json(page_of(**file), PAGE, "deepspeed") == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        page_of(size="large"),
        page_of(url=None),
        page_of().replace(b'"1.1"', b'"2.0"'),
    ],
)
def test_json_that_is_no_such_page_is_told(body):
    with pytest.raises(ValueError, match=r".+"):
        from_json(body, PAGE, "deepspeed")


# --- on good servers


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "below", ["", "/", "/simple", "/simple/", "/simple/deepspeed/", "/simple#x"]
)
def test_index_on_a_server_tells_all(indexed, below, as_json):
    with served(indexed, as_json=as_json) as url:
        check_told(list_wheels(url + below, "deepspeed"), indexed)


@pytest.mark.parametrize("name", ["index.json", "index.html"])
def test_page_can_be_named_itself(indexed, name):
    with served(indexed) as url:
        check_told(list_wheels(f"{url}/simple/deepspeed/{name}", "deepspeed"), indexed)


def test_wheels_are_not_fetched_where_files_lie_beside_them(indexed):
    with served(indexed) as url:
        found = list_wheels(url, "deepspeed")
        for wheel in indexed.glob("*.whl"):
            wheel.unlink()
        assert read_manifest(found[1]) == MANIFEST
        assert b"Version: 0.19.7" in read_metadata(found[0])


def test_listing_of_a_folder_is_a_page_of_links(folder):
    (folder / "deepspeed").mkdir()  # a checkout, say: not the page of a project
    with served(folder) as url:
        found = list_wheels(url, "deepspeed")
        assert names(found) == BOTH
        assert [read_manifest(each) for each in found] == [None, MANIFEST]


def test_only_what_is_read_of_a_wheel_is_fetched(folder):
    with served_in_parts(folder) as (url, given):
        (_, found) = list_wheels(url, "deepspeed")
        assert read_manifest(found) == MANIFEST
        assert read_metadata(found) == metadata("deepspeed", "0.19.8")
    assert given == [2**16, 2**16]


def test_what_lies_before_the_end_of_a_wheel_is_fetched_as_well(folder):
    many = {f"deepspeed/{number:05}": b"" for number in range(3000)}
    wheel = put_wheel(folder, version="1", manifest=MANIFEST, extra=many)
    found = Candidate(wheel.name, "")
    with served_in_parts(folder) as (url, given):
        found = Candidate(wheel.name, f"{url}/{wheel.name}")
        assert read_manifest(found) == MANIFEST
    assert 2 <= len(given) <= 6


def test_wheel_fetched_whole_is_checked(folder):
    with served(folder) as url:
        found = Candidate(NAME, f"{url}/{NAME}", sha256=SHA)
        with pytest.raises(ProbeError, match="not the file that the index names"):
            read_manifest(found)


def test_configuration_is_asked_only_for_servers(folder):
    def fails() -> IndexConfig:
        raise ProbeError("pip was asked")

    list_wheels(str(folder), "deepspeed", fails)
    with pytest.raises(ProbeError, match="pip was asked"):
        list_wheels("http://127.0.0.1:1/", "deepspeed", fails)


def test_configuration_that_cannot_be_used_is_told():
    config = IndexConfig(cert="/gone.pem")
    with pytest.raises(ProbeError, match="configuration cannot be used"):
        list_wheels("https://127.0.0.1:1/", "deepspeed", lambda: config)


# --- on bad servers

Answer = Callable[[BaseHTTPRequestHandler], None]


class Scripted(BaseHTTPRequestHandler):
    """Answers as the test says."""

    answer: Answer

    def do_GET(self) -> None:
        try:
            type(self).answer(self)
        except OSError:  # the other side has had enough
            self.close_connection = True

    def say(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Type": "text/html", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[Callable[[Answer], str]]:
    """Start a server that answers so; its address."""
    started = []

    def start(answer: Answer) -> str:
        server = on_port(type("Bad", (Scripted,), {"answer": answer}))
        started.append(server)
        return server.__enter__()

    yield start
    for server in started:
        server.__exit__(None, None, None)


def endless(self: Scripted) -> None:
    self.say(b"<a>", Content_Length=str(2**40))
    while True:
        self.wfile.write(b"<a>" * 2**14)


def drip(self: Scripted) -> None:
    self.say(b"<a>", Content_Length="1000")
    for _ in range(100):
        self.wfile.write(b" ")
        time.sleep(0.05)


def drip_headers(self: Scripted) -> None:
    self.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(100):
        self.wfile.write(b"X-%d: 1\r\n" % number)
        time.sleep(0.05)


def silent(self: Scripted) -> None:
    time.sleep(1)


ANSWERS = {
    "no page": (lambda self: self.say(status=404), "HTTP 404"),
    "forbidden": (lambda self: self.say(status=403), "HTTP 403"),
    "password": (lambda self: self.say(status=401), "HTTP 401"),
    "its defect": (lambda self: self.say(status=500), "HTTP 500"),
    "no content": (lambda self: self.say(status=204), "HTTP 204"),
    "a zip": (lambda self: self.say(b"PK", Content_Type="application/zip"), "application/zip"),
    "no type": (lambda self: self.say(b"<a>", Content_Type=""), "unknown"),
    "no HTML": (lambda self: self.say(b"\0\1\2" * 1000), "no HTML"),
    "no JSON": (lambda self: self.say(b"<a>", Content_Type=JSON), "malformed"),
    "other JSON": (lambda self: self.say(b'{"a": 1}', Content_Type=JSON), "meta"),
    "cut": (lambda self: self.say(b"<a>", Content_Length="9999"), "closed connection"),
    "no gzip": (lambda self: self.say(b"<a>", Content_Encoding="gzip"), "incorrect header"),
    "no HTTP": (lambda self: self.wfile.write(b"SSH-2.0-x\r\n\r\n"), "illegal status line"),
    "nothing": (lambda self: None, "disconnected"),
    "a circle": (lambda self: self.say(status=302, Location=self.path), "redirects"),
    "no address": (lambda self: self.say(status=302, Location="http://["), ""),
    "to files": (lambda self: self.say(status=302, Location="file:///etc/passwd"), ""),
    "away": (lambda self: self.say(status=302, Location="ftp://host/"), "ftp"),
    "endless": (endless, "more than"),
    "drip": (drip, "longer than"),
    "drip of headers": (drip_headers, "longer than"),
    "silent": (silent, "longer than"),
}


SLOW = {"drip", "drip of headers", "silent"}


@pytest.fixture
def impatient(monkeypatch) -> Callable[[str], None]:
    """Wait for a moment only, where an answer is one that takes long."""

    def wait(what: str) -> None:
        for name in ("PAGE_SECONDS", "WHEEL_SECONDS") if what in SLOW else ():
            monkeypatch.setattr(web, name, 0.2)

    return wait


@pytest.mark.parametrize("what", ANSWERS)
def test_bad_answer_is_told_with_its_address_and_in_time(answering, impatient, what):
    impatient(what)
    answer, found = ANSWERS[what]
    url, start = answering(answer), time.monotonic()
    with pytest.raises(ProbeError) as caught:
        list_wheels(f"{url}/simple", "deepspeed")
    assert time.monotonic() - start < 20
    assert f"{url}/simple" in caught.value.message
    assert found in caught.value.found
    assert caught.value.wanted
    assert caught.value.hint


def test_nobody_at_the_address_is_told():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/simple"
    with pytest.raises(ProbeError, match="cannot be read") as caught:
        list_wheels(url, "deepspeed")
    assert "refused" in caught.value.found


def test_page_over_plain_http_elsewhere_is_taken_only_where_pip_would(monkeypatch):
    monkeypatch.setattr(web, "PAGE_SECONDS", 5)  # for a name that is nobody's
    for url in ("http://wheels.example/simple/", "http://10.0.0.1/simple"):
        with pytest.raises(ProbeError, match="not to be trusted") as caught:
            list_wheels(url, "deepspeed")
        assert "trusted-host" in caught.value.hint
    config = IndexConfig(trusted_hosts=("wheels.invalid",))
    with pytest.raises(ProbeError, match="cannot be read"):  # it was asked
        list_wheels("http://wheels.invalid/simple", "deepspeed", lambda: config)


def test_redirect_to_plain_http_elsewhere_is_refused(answering, monkeypatch):
    url = answering(lambda self: self.say(b"<a>"))
    real = web.index.is_trusted
    monkeypatch.setattr(
        web.index, "is_trusted", lambda client, at: real(client, at) and "away" not in at
    )
    moved = answering(lambda self: self.say(status=302, Location=f"{url}/away"))
    with pytest.raises(ProbeError, match="not to be trusted"):
        list_wheels(moved, "deepspeed")


def test_password_is_used_for_files_too_and_never_shown(indexed, answering):
    def guarded(self: Scripted) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        if base64.b64decode(given) != b"me:secret":
            self.say(status=401, WWW_Authenticate='Basic realm="x"')
        elif self.path.endswith("/deepspeed/"):
            self.say((indexed / "simple/deepspeed/index.html").read_bytes())
        else:
            path = indexed / self.path.rpartition("/")[2].replace("%2B", "+")
            self.say(path.read_bytes() if path.is_file() else b"", 200 if path.is_file() else 404)

    url = answering(guarded)
    found = list_wheels(url.replace("//", "//me:secret@") + "/a/simple", "deepspeed")
    assert "secret" not in str(found)
    assert read_manifest(found[1]) == MANIFEST
    with pytest.raises(ProbeError) as caught:
        list_wheels(url.replace("//", "//me:wrong@"), "deepspeed")
    assert "wrong" not in str(caught.value)


PART = {"Content_Range": "bytes 0-3/4"}
WHEELS = {
    "gone": lambda self: self.say(status=404),
    "its defect": lambda self: self.say(status=500),
    "empty": lambda self: self.say(),
    "no zip": lambda self: self.say(b"PK" * 99),
    "part no zip": lambda self: self.say(b"PK" * 2, 206, **PART),
    "part of another size": lambda self: self.say(b"PK", 206, **PART),
    "part of nowhere": lambda self: self.say(b"PK" * 2, 206, Content_Range="bytes 7-3/4"),
    "part without range": lambda self: self.say(b"PK", 206),
    "no range": lambda self: self.say(status=416),
    "endless": endless,
    "drip": drip,
    "silent": silent,
}


@pytest.mark.parametrize("what", WHEELS)
def test_bad_wheel_is_told_with_its_address_and_in_time(answering, impatient, monkeypatch, what):
    impatient(what)
    monkeypatch.setattr(web, "MOST_WHEEL", 2**24)
    url, start = answering(WHEELS[what]), time.monotonic()
    with pytest.raises(ProbeError) as caught:
        read_metadata(Candidate(NAME, f"{url}/{NAME}"))
    assert time.monotonic() - start < 20
    assert f"{url}/{NAME}" in caught.value.message
    assert caught.value.found


def test_server_that_gives_other_bytes_than_asked_for_is_told(answering):
    end = b"PK\x05\x06" + b"\0" * 4 + b"\1\0\1\0" + (2**20).to_bytes(4, "little") + b"\0" * 6
    body = b"\0" * (2**16 - len(end)) + end

    def confused(self: Scripted) -> None:
        self.say(body, 206, Content_Range=f"bytes {2**24 - 2**16}-{2**24 - 1}/{2**24}")

    with pytest.raises(ProbeError, match="cannot be read") as caught:
        read_metadata(Candidate(NAME, f"{answering(confused)}/{NAME}"))
    assert "other bytes" in caught.value.found


def test_list_of_files_without_end_is_told(answering, monkeypatch):
    monkeypatch.setattr(web, "MOST_PARTS", 2**18)
    size = 2**40
    end = b"PK\x05\x06" + b"\0" * 4 + b"\1\0\1\0" + (2**30).to_bytes(4, "little") + b"\0" * 6

    def vast(self: Scripted) -> None:
        asked = self.headers["Range"].removeprefix("bytes=")
        first, _, last = asked.partition("-")
        start, stop = (int(first), int(last) + 1) if first else (size - 2**16, size)
        body = (b"\0" * (stop - start - len(end))) + end
        self.say(body[: stop - start], 206, Content_Range=f"bytes {start}-{stop - 1}/{size}")

    with pytest.raises(ProbeError, match="cannot be read") as caught:
        read_metadata(Candidate(NAME, f"{answering(vast)}/{NAME}"))
    assert "more than 262144 bytes" in caught.value.found


def test_file_beside_a_wheel_that_is_bad_is_told(answering):
    url = answering(lambda self: self.say(b"x"))
    found = Candidate(NAME, f"{url}/{NAME}", manifest_url=f"{url}/x", manifest_sha256=SHA)
    with pytest.raises(ProbeError, match="not the file that the index names"):
        read_manifest(found)
    url = answering(lambda self: self.say(status=500))
    with pytest.raises(ProbeError, match="cannot be read"):
        read_metadata(Candidate(NAME, f"{url}/{NAME}", metadata_url=f"{url}/x"))


def test_every_failure_is_one_of_ours(answering):
    """Also where an answer comes in a thread of its own."""
    before = threading.active_count()
    url = answering(lambda self: self.say(status=500))
    for _ in range(3):
        with pytest.raises(DeepbuildError):
            list_wheels(url, "deepspeed")
    assert threading.active_count() <= before + 3
