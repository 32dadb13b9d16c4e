"""Small wheels, and servers for them: one as any web server is, one that gives parts of files."""

from __future__ import annotations

import io
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

JSON = "application/vnd.pypi.simple.v1+json"
MANIFEST = b'{"schema": 1, "ops": ["cpu_adam"]}\n'


def metadata(name: str, version: str, requires_python: str = ">=3.8") -> bytes:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, f"Requires-Python: {requires_python}", "", "Wörter", ""]).encode()


def wheel_bytes(
    name: str = "deepspeed",
    version: str = "0.19.8",
    manifest: bytes | None = None,
    extra: dict[str, bytes] | None = None,
    said: bytes | None = None,
) -> bytes:
    """A wheel that pip installs; `said` is its METADATA where that is to be another."""
    info = f"{name}-{version}.dist-info"
    files = {f"{name}/__init__.py": f"__version__ = '{version}'\n".encode(), **(extra or {})}
    files[f"{info}/METADATA"] = metadata(name, version) if said is None else said
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if manifest is not None:
        files[f"{info}/deepbuild.json"] = manifest
    files[f"{info}/RECORD"] = "".join(f"{each},,\n" for each in files).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        for each, content in files.items():
            out.writestr(each, content)
    return buffer.getvalue()


def put_wheel(
    folder: Path, name: str = "deepspeed", version: str = "0.19.8", **content: object
) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    path.write_bytes(wheel_bytes(name, version, **content))
    return path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Negotiating(_Quiet):
    """Gives the JSON form of a page to who wants it, as a server of an index does."""

    def send_head(self):
        if self.path.endswith("/") and JSON in self.headers.get("Accept", ""):
            self.path += "index.json"
        return super().send_head()

    def guess_type(self, path: str) -> str:
        return JSON if str(path).endswith("index.json") else super().guess_type(path)


class Parting(_Quiet):
    """Gives the part of a file that is asked for; `given` counts the bytes."""

    given: list[int]

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not asked or not path.is_file():
            super().do_GET()
            return
        content, (first, last) = path.read_bytes(), asked.groups()
        start = int(first) if first else max(0, len(content) - int(last))
        part = content[start : int(last) + 1 if first and last else None]
        self.given.append(len(part))
        self.send_response(206)
        span = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        self.send_header("Content-Range", span)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


@contextmanager
def on_port(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve while the block runs; the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def served(folder: Path, *, as_json: bool = False) -> Iterator[str]:
    """As `python -m http.server` serves a folder, or as an index that knows of JSON does."""
    with on_port(partial(Negotiating if as_json else _Quiet, directory=str(folder))) as url:
        yield url


@contextmanager
def served_in_parts(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """As most web servers do: also parts of files. The address, and the sizes given."""
    given: list[int] = []
    handler = type("Counting", (Parting,), {"given": given})
    with on_port(partial(handler, directory=str(folder))) as url:
        yield url, given
