"""A package index on 127.0.0.1, with the ways in which real ones misbehave."""

from __future__ import annotations

import base64
import hashlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


@dataclass
class Index:
    """Serves `files` as releases of deepspeed, under /simple/deepspeed/ and /files/.

    `requests` are the paths that were asked for, as they came in.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    """File name -> the fragment that the index gives instead of the true hash."""
    truncated: set[str] = field(default_factory=set)
    redirects: bool = False
    password: str = ""
    status: int = 200
    requests: list[str] = field(default_factory=list)
    url: str = ""
    root: str = ""

    def add(self, name: str, content: bytes, fragment: str | None = None) -> None:
        self.files[name] = content
        if fragment is not None:
            self.hashes[name] = fragment

    def downloads(self) -> int:
        return sum("/files/" in path for path in self.requests)

    def page(self) -> bytes:
        rows = []
        for name, content in self.files.items():
            true = f"#sha256={hashlib.sha256(content).hexdigest()}"
            rows.append(f'<a href="../../files/{name}{self.hashes.get(name, true)}">{name}</a>')
        return ("<!DOCTYPE html><html><body>" + "<br>".join(rows) + "</body></html>").encode()


class _Server(ThreadingHTTPServer):
    index: Index


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        index = self.server.index
        index.requests.append(self.path)
        path = urlsplit(self.path).path
        if index.password and not self._knows(index.password):
            self._send(401, b"", {"WWW-Authenticate": 'Basic realm="packages"'})
        elif index.status != 200:
            self._send(index.status, b"")
        elif index.redirects and not path.startswith("/moved"):
            self._send(302, b"", {"Location": f"/moved{path}"})
        else:
            self._answer(path.removeprefix("/moved"))

    def _knows(self, password: str) -> bool:
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        return base64.b64decode(given).decode() == password

    def _answer(self, path: str) -> None:
        index = self.server.index
        name = path.rpartition("/")[2]
        if path == "/simple/deepspeed/":
            self._send(200, index.page(), {"Content-Type": "text/html"})
        elif path.startswith("/files/") and name in index.files:
            self._send(200, index.files[name], cut=name in index.truncated)
        else:
            self._send(404, b"")

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(index: Index, certificate: Path | None = None) -> Iterator[Index]:
    """Serve an index while the block runs; over TLS where a certificate (with key) is given."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.index = index
    scheme = "http"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    index.root = f"{scheme}://127.0.0.1:{server.server_port}"
    index.url = f"{index.root}/simple"
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
