"""Package indexes as pip is configured to see them: index, extra indexes, find-links, proxy,
certificates. Finds a source distribution and fetches it, without running any of its code."""

from __future__ import annotations

import ast
import hashlib
import logging
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version
from pip._internal.models.index import PyPI  # where pip looks unless it is told otherwise

from deepbuild.addresses import without_secrets
from deepbuild.errors import ProbeError, UsageError
from deepbuild.host import Host
from deepbuild.probe.answers import last_line

if TYPE_CHECKING:
    from unearth import Package, PackageFinder

DEFAULT_INDEX: str = PyPI.simple_url
_LISTED = re.compile(r"^(:env:|global|install|download)\.([a-z-]+)=(.*)$")
_HASHES = {"md5", "sha1", "sha224", "sha256", "sha384", "sha512"}
_TRUE = {"1", "true", "yes", "on", "t", "y"}


@dataclass(frozen=True)
class IndexConfig:
    """What pip's configuration says of indexes. `cert` is a file or folder of certificates."""

    index_urls: tuple[str, ...] = (DEFAULT_INDEX,)
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    cert: str = ""
    proxy: str = ""


@dataclass(frozen=True)
class Sdist:
    """A source distribution on an index; `hashes` is empty where the index gives none."""

    version: str
    filename: str
    url: str
    hashes: dict[str, str]


def read_config(host: Host, python: str) -> IndexConfig:
    """pip's own word on its configuration: files, environment and their precedence."""
    done = host.run([python, "-m", "pip", "config", "list"])
    if not done.ok:
        raise ProbeError(
            "pip cannot read its configuration, which names the package index",
            found=last_line(done),
            wanted="`pip config list` to work",
            hint="mend the file that it names, or PIP_CONFIG_FILE",
        )
    return parse_config(done.stdout)


def parse_config(text: str) -> IndexConfig:
    """Read `pip config list`. The environment wins over a command's section, that over global.

    >>> parse_config("global.index-url='https://a'\\n:env:.index-url='https://b'").index_urls
    ('https://b',)
    """
    ranks = {"global": 0, "install": 1, "download": 1, ":env:": 2}
    values: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        match = _LISTED.match(line.strip())
        if not match:
            continue
        section, name, raw = match.groups()
        if ranks[section] >= values.get(name, (-1, ""))[0]:
            values[name] = (ranks[section], _unquote(raw))

    def words(name: str) -> tuple[str, ...]:
        return tuple(values.get(name, (0, ""))[1].split())

    off = values.get("no-index", (0, ""))[1].strip().lower() in _TRUE
    main = () if off else words("index-url") or (DEFAULT_INDEX,)
    return IndexConfig(
        index_urls=(*main, *(words("extra-index-url") if main else ())),
        find_links=words("find-links"),
        trusted_hosts=words("trusted-host"),
        cert=values.get("cert", (0, ""))[1],
        proxy=values.get("proxy", (0, ""))[1],
    )


def _unquote(raw: str) -> str:
    try:
        return str(ast.literal_eval(raw))
    except (ValueError, SyntaxError):
        return raw


def find_sdist(config: IndexConfig, project: str, version: str) -> Sdist:
    """The source distribution of a release, the newest final one for version "".

    Raises:
        UsageError: the index answers, and has no such release.
        ProbeError: no index answers.
    """
    packages, failures = _all_packages(config, project, yanked=bool(version))
    for package in packages:
        if _wanted(str(package.version), version):
            return _sdist(package)
    if failures or not packages:
        nothing = f"no source distribution of {project} listed"
        raise _no_answer(config, "\n".join(failures) or nothing)
    raise _no_release(project, version, [str(package.version) for package in packages])


def _all_packages(
    config: IndexConfig, project: str, *, yanked: bool
) -> tuple[list[Package], list[str]]:
    """What all places list, newest first, and why places gave no answer. As with pip, one that
    does not answer is no reason to give up the others."""
    packages: list[Package] = []
    failures: list[str] = []
    with _session(config) as session:
        for place in _places(config):
            finder = _finder(place, project, session)
            try:
                with _heard(failures):
                    packages += finder.find_all_packages(project, allow_yanked=yanked)
            except Exception as error:
                failures.append(f"{', '.join(_names(place))}: {error}")
    known = [package for package in packages if _number(str(package.version))]
    return sorted(known, key=lambda each: Version(str(each.version)), reverse=True), failures


def _places(config: IndexConfig) -> Iterator[IndexConfig]:
    """Each index and each find-links place on its own."""
    for url in config.index_urls:
        yield replace(config, index_urls=(url,), find_links=())
    for link in config.find_links:
        if "://" in link or Path(link).exists():
            yield replace(config, index_urls=(), find_links=(link,))


@contextmanager
def _heard(lines: list[str]) -> Iterator[None]:
    """Note what unearth only logs; that an index lacks the project (404) is an answer."""

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "(404)" not in record.getMessage():
                lines.append(record.getMessage())

    logger, ear = logging.getLogger("unearth"), Ear()
    spread, logger.propagate = logger.propagate, False
    logger.addHandler(ear)
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.propagate = spread


def _number(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _wanted(found: str, wanted: str) -> bool:
    number = Version(found)
    return number == Version(wanted) if wanted else not number.is_prerelease


def _sdist(package: Package) -> Sdist:
    """With the hash of the link, wherever the index gives it: in the page or in the address."""
    link = package.link
    hashes = {name: values[0].lower() for name, values in (link.hash_option or {}).items()}
    known = {name: value for name, value in hashes.items() if name in _HASHES}
    return Sdist(str(package.version), link.filename, link.url, known)


def _finder(config: IndexConfig, project: str, session: Any) -> PackageFinder:
    from unearth import PackageFinder

    return PackageFinder(
        session=session,
        index_urls=config.index_urls,
        find_links=config.find_links,
        trusted_hosts=config.trusted_hosts,
        no_binary=[project],
        ignore_compatibility=True,
    )


def _session(config: IndexConfig) -> Any:
    try:
        return client(config)
    except (OSError, ValueError) as error:  # no such certificate, a proxy of an unknown kind
        raise _no_answer(config, f"pip's configuration cannot be used: {error}") from None


def client(config: IndexConfig) -> Any:
    """What asks servers as pip is configured to: proxy, certificates, passwords, time-outs.

    Raises:
        OSError, ValueError: no such certificate, or a proxy of an unknown kind.
    """
    from unearth.auth import MultiDomainBasicAuth
    from unearth.fetchers import PyPIClient

    options: dict[str, Any] = {
        "trusted_hosts": config.trusted_hosts,
        "timeout": 30.0,
        "follow_redirects": True,
        "auth": MultiDomainBasicAuth(prompting=False, index_urls=config.index_urls),
    }
    if config.cert:
        folder = Path(config.cert).is_dir()
        options["verify"] = ssl.create_default_context(
            cafile=None if folder else config.cert, capath=config.cert if folder else None
        )
    if config.proxy:
        # pip takes a proxy without a scheme
        options["proxy"] = config.proxy if "://" in config.proxy else f"http://{config.proxy}"
    return PyPIClient(**options)


def is_trusted(asking: Any, url: str) -> bool:
    """Whether pip would take files from there: over TLS, from this machine, or from a host that its
    configuration trusts. `asking` is a client."""
    from unearth.collector import is_secure_origin
    from unearth.link import Link

    with _heard([]):
        return bool(is_secure_origin(asking, Link(url)))


def size_of(config: IndexConfig, url: str) -> int:
    """The bytes of a file on an index, -1 where it does not say."""
    try:
        answer = _session(config).head(url)
        answer.raise_for_status()
        return int(answer.headers.get("Content-Length", -1))
    except Exception:  # a size is good to know, and nothing fails without it
        return -1


def _no_answer(config: IndexConfig, why: str) -> ProbeError:
    return ProbeError(
        "the package index gives no source distribution of DeepSpeed",
        found=why,
        wanted="an answer from "
        + (", ".join(_names(config)) or "an index: pip is told to use none"),
        hint="check the network, proxy and `pip config list`;\n"
        "or name a source folder: --deepspeed /path/to/DeepSpeed",
    )


def _names(config: IndexConfig) -> list[str]:
    return [without_secrets(url) for url in (*config.index_urls, *config.find_links)]


def _no_release(project: str, version: str, known: list[str]) -> UsageError:
    near = [name for name in known if name.startswith(".".join(version.split(".")[:2]) + ".")]
    return UsageError(
        f"there is no {project} {version} on the package index",
        found="releases " + ", ".join((near or known)[:8]),
        wanted="a release that exists",
        hint=f"--deepspeed {(near or known)[0]}",
    )


def fetch(
    config: IndexConfig, sdist: Sdist, folder: Path, note: Callable[[str], None]
) -> tuple[Path, str]:
    """Fetch a source distribution and check it.

    Returns:
        The file, and its sha256.

    Raises:
        ProbeError: the transfer broke off, or the file is not the one that the index names.
    """
    path = folder / Path(sdist.filename).name
    note(f"fetching {sdist.filename}")
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in {"sha256", *sdist.hashes}}
    session = _session(config)
    try:
        with session.get_stream(sdist.url) as answer, path.open("wb") as file:
            answer.raise_for_status()
            for chunk in answer.iter_bytes():
                file.write(chunk)
                for digest in digests.values():
                    digest.update(chunk)
    except OSError as error:
        raise ProbeError(
            f"cannot keep {sdist.filename}",
            found=str(error),
            wanted=f"to write in {folder}",
            hint="free some space, or set DEEPBUILD_CACHE_DIR to another disk",
        ) from None
    except Exception as error:
        raise _no_answer(config, f"{without_secrets(sdist.url)}: {error}") from None
    for name, wanted in sdist.hashes.items():
        if digests[name].hexdigest() != wanted:
            raise ProbeError(
                f"{sdist.filename} is not the file that the index names",
                found=f"{name} {digests[name].hexdigest()}",
                wanted=f"{name} {wanted}",
                hint="try again; if it stays so, the index or a proxy changes files",
            )
    return path, digests["sha256"].hexdigest()
