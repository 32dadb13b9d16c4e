"""The DeepSpeed that is installed in an environment: found by its dist-info, nothing of it run."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from urllib.parse import unquote, urlparse

import msgspec

from deepbuild import codec
from deepbuild.check.inside import modules_of
from deepbuild.errors import ProbeError, UsageError
from deepbuild.host import Host
from deepbuild.model import Interpreter, Manifest, NodeRecord
from deepbuild.wheel.contents import MANIFEST, Contents, contents_from

RECORD, NODE_RECORD = "RECORD", "deepbuild-node.json"
_PACKAGE = "deepspeed/__init__.py"


class Installed(msgspec.Struct, frozen=True):
    """`rows` are those of RECORD: file -> hash and size. `no_manifest` and `no_record` say why
    there is none; `broken` what could not be read of the claims; `more` are dist-infos beside
    `home`, of which there should be one."""

    python: Interpreter
    site: Path
    home: Path
    rows: Mapping[str, tuple[str, str]]
    contents: Contents
    tags: tuple[str, ...]
    manifest: Manifest | None
    no_manifest: str
    record: NodeRecord | None
    no_record: str
    broken: str = ""
    more: tuple[str, ...] = ()

    @property
    def libraries(self) -> dict[str, str]:
        """Op -> its library's name in RECORD."""
        named = modules_of(self.contents, self.manifest)
        there = self.contents.libraries
        return {op: there[module] for op, module in named.items() if module in there}

    @property
    def back(self) -> str:
        """The command that brings what was installed back: with its wheel, if that is still there,
        else by building it anew."""
        there = [quote(p) for p in _wheels(self.home, self.record) if Path(p).is_file()]
        return " ".join(["deepbuild install", *there[:1]]) + self.here

    @property
    def here(self) -> str:
        """The option of a command that means this environment."""
        return f" --python {quote(self.python.executable)}"


def find_installed(host: Host, python: Interpreter) -> Installed:
    """
    Raises:
        ProbeError: no DeepSpeed, or none whose files anybody wrote down.
    """
    for folder in dict.fromkeys((*python.path, python.site_packages)):
        names = [name for name in host.list_dir(folder) if _is_info(name)]
        if names:
            return _installed(python, Path(folder), names)
        if host.file_id(f"{folder}/{_PACKAGE}") or host.file_id(f"{folder}/deepspeed.egg-link"):
            raise _not_listed(python, folder, "no list of its files (a copied or egg installation)")
    raise ProbeError(
        f"no DeepSpeed in {python.executable}",
        found="no deepspeed-*.dist-info in " + ", ".join(dict.fromkeys(python.path)),
        wanted="an environment that DeepSpeed is installed in",
        hint=f"deepbuild install --python {quote(python.executable)}\n"
        "or name another environment: deepbuild check --python /path/to/venv",
    )


def _is_info(name: str) -> bool:
    """
    >>> _is_info("deepspeed-0.19.8.dist-info"), _is_info("deepspeed_kernels-0.1.dist-info")
    (True, False)
    """
    return name.lower().startswith("deepspeed-") and name.endswith(".dist-info")


def _not_listed(python: Interpreter, folder: str, why: str) -> ProbeError:
    return ProbeError(
        f"what the DeepSpeed in {folder} consists of is not known",
        found=why,
        wanted="one that was installed from a wheel",
        hint=f"deepbuild install --python {quote(python.executable)}",
    )


def _installed(python: Interpreter, site: Path, names: list[str]) -> Installed:
    home = next((site / n for n in names if (site / n / RECORD).is_file()), site / names[0])
    rows = read_rows(home)
    if _PACKAGE not in rows:
        why = "an editable installation" if rows else f"no {home.name}/{RECORD}"
        raise _not_listed(python, str(site), why)
    contents, broken = _contents(home, rows)
    manifest, no_manifest = _read(home / MANIFEST, Manifest)
    record, no_record = _read(home / NODE_RECORD, NodeRecord)
    more = tuple(name for name in names if name != home.name)
    return Installed(
        python=python,
        site=site,
        home=home,
        rows=rows,
        contents=contents,
        tags=_tags(home),
        manifest=manifest,
        no_manifest=no_manifest,
        record=record,
        no_record=no_record,
        broken=broken,
        more=more,
    )


def read_rows(home: Path) -> dict[str, tuple[str, str]]:
    """The RECORD of a dist-info; empty where there is none."""
    try:
        text = (home / RECORD).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    try:
        rows = [row for row in csv.reader(io.StringIO(text)) if len(row) == 3]
    except csv.Error:
        return {}
    return {name: (digest, size) for name, digest, size in rows}


def _contents(home: Path, rows: Mapping[str, tuple[str, str]]) -> tuple[Contents, str]:
    own = [name for name in rows if ".dist-info/" not in name or name.startswith(f"{home.name}/")]
    try:
        return contents_from(own, lambda name: (home.parent / name).read_bytes()), ""
    except Exception as error:  # OSError, and what ast raises on a damaged file
        version = home.name.removesuffix(".dist-info").partition("-")[2]
        why = f"what it says of itself cannot be read ({type(error).__name__}: {error})"
        return Contents(version, "", (), (), "", {}, {}), why


def _tags(home: Path) -> tuple[str, ...]:
    """What the wheel was for, by its file WHEEL."""
    try:
        text = (home / "WHEEL").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(re.findall(r"^Tag: *([\w.]+-[\w.]+-[\w.]+)$", text, re.M))


def _read(path: Path, kind: type[codec.Noun]) -> tuple[codec.Noun | None, str]:
    """A noun in the dist-info, or why there is none."""
    if not path.is_file():
        return None, "none"
    try:
        return codec.load_file(path, kind), ""
    except UsageError as error:
        return None, error.found


def _wheels(home: Path, record: NodeRecord | None) -> list[str]:
    """Where the wheel was that was installed: by pip's note (PEP 610), and by ours."""
    paths = [record.wheel] if record else []
    try:
        url = json.loads((home / "direct_url.json").read_text(encoding="utf-8"))["url"]
        paths.append(unquote(urlparse(str(url)).path))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return [path for path in paths if path.endswith(".whl")]
