"""What wheels say of themselves, asked of several at once where they are elsewhere."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from deepbuild import codec
from deepbuild.errors import DeepbuildError, ProbeError
from deepbuild.model import Manifest
from deepbuild.wheelhouse.reading import Config, read_manifest, read_metadata
from deepbuild.wheelhouse.told import Named, Told, of_binaries, of_manifest, of_metadata

T = TypeVar("T")
U = TypeVar("U")

AT_ONCE = 6  # as many as `python -m http.server` lets wait; what is more comes again after a second
MOST_FAILURES = 3
"""Of wheels on a server: then it is the server that does not work."""


def learn(wheels: Sequence[Named], config: Config) -> Iterator[Told | str]:
    """What is known of each wheel, in their order; words where it cannot be read.

    Args:
        config: pip's configuration; it is asked for only where a server is.

    Raises:
        ProbeError: what a server said of one wheel, if it says so of several.
    """
    failed = 0
    elsewhere = any(not is_here(each) for each in wheels)
    for named, answer in zip(wheels, _asked(wheels, config, elsewhere), strict=True):
        if isinstance(answer, Told):
            yield answer
            continue
        failed += not is_here(named)
        if failed >= MOST_FAILURES and isinstance(answer, ProbeError):
            raise answer
        yield ": ".join(filter(None, [answer.message, answer.found])).replace("\n", "; ")


def is_here(named: Named) -> bool:
    return named.candidate.url.startswith("file:")


def path_of(named: Named) -> Path:
    """The file of a wheel that is here."""
    return Path(unquote(urlsplit(named.candidate.url).path))


def _asked(
    wheels: Sequence[Named], config: Config, elsewhere: bool
) -> Iterator[Told | DeepbuildError]:
    def ask(named: Named) -> Told | DeepbuildError:
        try:
            return _told(named, config)
        except DeepbuildError as error:
            return error
        except ValueError as error:  # what is said is no version, capability or level
            return DeepbuildError(str(error))

    if not elsewhere:
        return map(ask, wheels)
    config()  # once, before many ask for it
    return at_once(ask, wheels)


def _told(named: Named, config: Config) -> Told:
    manifest = read_manifest(named.candidate, config)
    if manifest is not None:
        return of_manifest(named, codec.load(manifest, Manifest, f"manifest of {named.filename}"))
    if is_here(named):
        from deepbuild.check.inside import look_inside

        return of_binaries(named, look_inside(path_of(named)))
    return of_metadata(named, read_metadata(named.candidate, config))


def at_once(ask: Callable[[T], U], things: Sequence[T]) -> Iterator[U]:
    """Ask about several things at the same time; the answers come in their order. Who waits no
    longer, since one answer was bad or the user went away, is not held up by the others."""
    waiting = deque((thing, Future[U]()) for thing in things)
    futures = [future for _, future in waiting]

    def work() -> None:
        while waiting:
            try:
                thing, future = waiting.popleft()
            except IndexError:  # another one was quicker
                return
            try:
                future.set_result(ask(thing))
            except BaseException as error:  # handed on to who waits
                future.set_exception(error)

    for _ in range(min(AT_ONCE, len(things))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for future in futures:
            yield future.result()
    finally:
        waiting.clear()
