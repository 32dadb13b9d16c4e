"""A wheel as an archive: its RECORD and its names."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from zipfile import ZipFile

from packaging.utils import canonicalize_version, parse_wheel_filename

from deepbuild.check.inside import Inside
from deepbuild.model import Check
from deepbuild.wheel.seal import hash_of

_SHOWN = 3


def archive_checks(inside: Inside) -> Iterator[Check]:
    yield verdict("RECORD", record_problems(inside), f"{len(inside.files)} files, each as recorded")
    yield verdict("names", name_problems(inside), f"{inside.path.name}, and the same inside")
    yield verdict("places", place_problems(inside), "nothing outside of deepspeed/ and its scripts")


def verdict(name: str, problems: list[str], proved: str) -> Check:
    """
    >>> verdict("RECORD", [], "all there").status, verdict("RECORD", ["x"], "all there").evidence
    ('passed', 'x')
    """
    if not problems:
        return Check(name, "passed", proved)
    more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return Check(name, "failed", "; ".join(problems[:_SHOWN]) + more)


def record_problems(inside: Inside) -> list[str]:
    """What RECORD and the archive do not agree on; names that would leave the folder."""
    own = f"{inside.home}/RECORD"
    text = inside.files.get(own, b"").decode("utf-8", "replace")
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        return [f"RECORD cannot be read ({error})"]
    recorded = {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}
    with ZipFile(inside.path) as archive:
        twice = [n for n, count in Counter(archive.namelist()).items() if count > 1]
    named = Counter(row[0] for row in rows if row)
    found = [f"{name} is in it twice" for name in twice]
    found += [f"RECORD names {name} twice" for name, count in named.items() if count > 1]
    found += [f"a row of RECORD has {len(row)} columns" for row in rows if len(row) not in {0, 3}]
    for name, data in inside.files.items():
        if _leaves(name):
            found.append(f"{name} would be written elsewhere")
        if name == own:
            continue
        if name not in recorded:
            found.append(f"{name} is not in RECORD")
        elif recorded[name] != (hash_of(data), str(len(data))):
            found.append(f"{name} is not what RECORD says")
    return found + [f"{name} is in RECORD only" for name in recorded if name not in inside.files]


def _leaves(name: str) -> bool:
    return name.startswith("/") or ".." in name.split("/") or "\\" in name


def place_problems(inside: Inside) -> list[str]:
    """What pip would put outside of DeepSpeed's own folder: over other packages, or where Python
    runs it at every start."""
    scripts = inside.home.removesuffix(".dist-info") + ".data/scripts/"
    own = ("deepspeed/", f"{inside.home}/", scripts)
    return [f"{name} is not DeepSpeed's" for name in inside.files if not name.startswith(own)]


def name_problems(inside: Inside) -> list[str]:
    """The file's name, the dist-info's, METADATA, WHEEL and DeepSpeed's own version: all one."""
    _, version, _, tags = parse_wheel_filename(inside.path.name)
    contents = inside.contents
    own = inside.home.removesuffix(".dist-info").partition("-")[2]
    claimed = {"METADATA": contents.version, "its dist-info": own, "DeepSpeed": contents.told}
    problems = [
        f"{where} says version {told}, the file's name {version}"
        for where, told in claimed.items()
        if canonicalize_version(told) != canonicalize_version(str(version))
    ]
    name = contents.name.lower()
    problems += [f"METADATA names {contents.name or 'nothing'}"] if name != "deepspeed" else []
    lines = inside.files.get(f"{inside.home}/WHEEL", b"").decode("utf-8", "replace").splitlines()
    written = {line[4:].strip() for line in lines if line.startswith("Tag:")}
    if written != {str(tag) for tag in tags}:
        problems.append(f"WHEEL says {', '.join(sorted(written)) or 'no tag'}, the name another")
    return problems
