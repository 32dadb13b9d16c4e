"""Pages and parts of files from servers that may be slow, endless or hostile: each answer comes
within a time and a size, or is an error that says which address gave what."""

from __future__ import annotations

import hashlib
import io
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar, cast

from deepbuild import index
from deepbuild.errors import DeepbuildError, ProbeError
from deepbuild.wheelhouse.failures import check_hash, no_answer, untrusted
from deepbuild.wheelhouse.inside import MOST_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

PAGE_SECONDS = 60.0
MOST_WHEEL, WHEEL_SECONDS = 4 * 2**30, 3600.0
MOST_PARTS = 32 * 2**20
"""What is read of a wheel in parts: the list of its files, METADATA, a manifest."""
_TAIL = 2**16
"""Where a zip archive has its list of files, and a wheel its dist-info."""

_OK, _PARTIAL = 200, 206
_ABSENT = {403, 404, 410}
"""What servers say of a file that is not there; 403 where listing is not allowed."""
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_WHOLE_BYTES = {"Accept-Encoding": "identity"}


class Writable(Protocol):
    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True)
class Answer:
    """`url` is where redirects ended; `kind` the content type, without its parameters. The body is
    that of the status wanted only."""

    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def text(self) -> str:
        charset = re.search(r"charset=\"?([\w-]{1,40})", self.headers.get("content-type", ""))
        try:
            return self.body.decode(charset.group(1) if charset else "utf-8", "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")

    @property
    def is_absent(self) -> bool:
        return self.status in _ABSENT


@dataclass(frozen=True)
class Web:
    """Servers, as pip's configuration says to ask them."""

    client: Any

    def page(self, url: str, accept: str) -> Answer:
        """A whole page; one that is absent is an answer, any other status is not.

        Raises:
            ProbeError: no answer, no page, or none that is to be trusted.
        """
        answer = within(PAGE_SECONDS, url, lambda: self._page(url, accept))
        if answer.status != _OK and not answer.is_absent:
            raise no_answer(url, f"HTTP {answer.status} {answer.reason}")
        return answer

    def _page(self, url: str, accept: str) -> Answer:
        self._require_trust(url)
        answer = self._ask(url, {"Accept": accept}, _OK)
        self._require_trust(answer.url)
        return answer

    def _require_trust(self, url: str) -> None:
        if not index.is_trusted(self.client, url):
            raise untrusted(url)

    def small(self, url: str) -> bytes | None:
        """A small file, None where it is absent.

        Raises:
            ProbeError: no answer, or more than a small file.
        """
        answer = self._get(url, _WHOLE_BYTES)
        if answer.status == _OK:
            return answer.body
        if answer.is_absent:
            return None
        raise no_answer(url, f"HTTP {answer.status} {answer.reason}")

    @contextmanager
    def wheel(self, url: str, sha256: str) -> Iterator[IO[bytes]]:
        """A wheel to read in: of one whose server gives parts of files, only what is read comes.

        Args:
            sha256: of the whole, to check where the whole is fetched; "" where it is not known.

        Raises:
            ProbeError: no answer, or not the file that the index names.
        """
        parts = self._parts(url)
        if parts:
            with parts:
                yield parts
            return
        with _scratch(url) as file:
            self.whole(url, sha256, file)
            file.seek(0)
            yield file

    def whole(self, url: str, sha256: str, file: Writable) -> None:
        """Write a whole file into one that is open.

        Args:
            sha256: "" where it is not known; then the server must be one to trust.

        Raises:
            ProbeError: no answer, or not the file that the index names.
        """
        if not sha256:
            self._require_trust(url)
        found = within(WHEEL_SECONDS, url, lambda: self._download(url, file))
        check_hash(url, found, sha256)

    def _parts(self, url: str) -> IO[bytes] | None:
        """A file read in parts, None where its server gives none."""
        answer = self._get(url, _WHOLE_BYTES | {"Range": f"bytes=-{_TAIL}"}, wanted=_PARTIAL)
        if answer.status in {*_ABSENT, 401}:
            raise no_answer(url, f"HTTP {answer.status} {answer.reason}")
        span = _span(answer)
        if span is None or span[1] != span[2]:
            return None
        start, _, size = span
        left = MOST_PARTS

        def fetch(first: int, stop: int) -> bytes:
            nonlocal left
            left -= stop - first
            if left < 0:
                raise no_answer(url, f"more than {MOST_PARTS} bytes of lists in it")
            asked = _WHOLE_BYTES | {"Range": f"bytes={first}-{stop - 1}"}
            part = self._get(answer.url, asked, wanted=_PARTIAL)
            if _span(part) != (first, stop, size):
                raise no_answer(url, f"other bytes than those asked for (HTTP {part.status})")
            return part.body

        return io.BufferedReader(Parts(size, start, answer.body, fetch), _TAIL)

    def _get(self, url: str, headers: Mapping[str, str], wanted: int = _OK) -> Answer:
        return within(PAGE_SECONDS, url, lambda: self._ask(url, headers, wanted))

    def _ask(self, url: str, headers: Mapping[str, str], wanted: int) -> Answer:
        body = bytearray()
        with self._stream(url, headers) as reply:
            if reply.status_code == wanted:
                for chunk in _chunks(reply, url, MOST_BYTES, PAGE_SECONDS):
                    body += chunk
            said = {name.lower(): value for name, value in reply.headers.items()}
            reason = str(reply.reason_phrase)[:80]
            return Answer(str(reply.url), reply.status_code, reason, said, bytes(body))

    def _download(self, url: str, file: Writable) -> str:
        """Fetch a whole file; its sha256."""
        digest = hashlib.sha256()
        with self._stream(url, _WHOLE_BYTES) as reply:
            if reply.status_code != _OK:
                raise no_answer(url, f"HTTP {reply.status_code} {reply.reason_phrase}"[:80])
            for chunk in _chunks(reply, url, MOST_WHEEL, WHEEL_SECONDS):
                file.write(chunk)
                digest.update(chunk)
        return digest.hexdigest()

    @contextmanager
    def _stream(self, url: str, headers: Mapping[str, str]) -> Iterator[Any]:
        with self.client.get_stream(url, headers=dict(headers)) as reply:
            if reply.url.scheme not in {"http", "https"}:
                raise no_answer(url, f"a redirect to {reply.url.scheme}:")
            yield reply


class Parts(io.RawIOBase):
    """A file of which only the end is here; the rest is fetched where it is read."""

    def __init__(
        self, size: int, start: int, tail: bytes, fetch: Callable[[int, int], bytes]
    ) -> None:
        super().__init__()
        self._size, self._start, self._tail, self._fetch, self._at = size, start, tail, fetch, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the start of the file")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        if self._at >= self._start:
            first = self._at - self._start
            data = self._tail[first : first + len(view)]
        else:
            data = self._fetch(self._at, min(self._at + len(view), self._start))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


@lru_cache(maxsize=4)
def web_of(config: index.IndexConfig) -> Web:
    """One for all questions, so that connections and passwords are kept.

    Raises:
        ProbeError: pip's configuration cannot be used.
    """
    try:
        return Web(index.client(config))
    except (OSError, ValueError) as error:
        raise ProbeError(
            "pip's configuration cannot be used",
            found=str(error),
            wanted="certificates and a proxy that are there",
            hint="check `pip config list`",
        ) from None


def within(seconds: float, url: str, ask: Callable[[], T]) -> T:
    """Do something in a thread, which is left to itself when the time is over: names that are
    looked up, headers that come byte by byte and pages that take long to read know no time-out.

    Raises:
        ProbeError: whatever went wrong.
    """
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(ask())
        except BaseException as error:  # handed on to who waits
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return done.result(seconds)
    except DeepbuildError:
        raise
    except (TimeoutError, FutureTimeout):
        raise no_answer(url, f"it takes longer than {seconds:.0f} s") from None
    except Exception as error:  # whatever a client of HTTP and TLS raises
        raise no_answer(url, str(error) or type(error).__name__) from None


def _chunks(reply: Any, url: str, most: int, seconds: float) -> Iterator[bytes]:
    """The body; the thread that reads it ends soon after nobody waits for it any more."""
    ends, size = time.monotonic() + seconds, 0
    for chunk in reply.iter_bytes():
        size += len(chunk)
        if size > most:
            raise no_answer(url, f"more than {most} bytes")
        if time.monotonic() > ends:
            raise TimeoutError
        yield cast("bytes", chunk)


def _scratch(url: str) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise no_answer(url, f"no temporary file can be made for it: {error}") from None


def _span(answer: Answer) -> tuple[int, int, int] | None:
    """First byte, the one after the last, and the size of the whole; None for another answer."""
    match = _RANGE.fullmatch(answer.headers.get("content-range", "").strip())
    if answer.status != _PARTIAL or not match:
        return None
    first, last, size = (int(number) for number in match.groups())
    return (first, last + 1, size) if last + 1 - first == len(answer.body) else None
