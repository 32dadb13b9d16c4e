"""What a wheel says of itself, in three places: they must say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from deepbuild.check.archive import verdict
from deepbuild.check.inside import Inside
from deepbuild.model import Check, Manifest
from deepbuild.wheel.platform import honest_platform, platform_tag, providers_of

_CPYTHON = re.compile(r"\.cpython-(\d+)-")


def claim_checks(inside: Inside) -> Iterator[Check]:
    yield verdict("ops", op_problems(inside), f"{_named(inside.contents.installed_ops)}: all there")
    yield verdict("torch", torch_problems(inside), f"requires {_torch_pin(inside)}")
    if inside.damaged:
        yield Check("manifest", "failed", f"it cannot be read: {inside.unread}")
    elif inside.manifest is None:
        yield Check("manifest", "skipped", inside.unread)
    else:
        problems = manifest_problems(inside, inside.manifest)
        yield verdict("manifest", problems, f"by deepbuild {inside.manifest.deepbuild}")
        yield _reproducible(inside.manifest)
        yield verdict("platform", platform_problems(inside, inside.manifest), _platform(inside))
    if inside.ops:
        tags = inside.path.name.removesuffix(".whl").split("-", 2)[2]
        yield verdict("tags", tag_problems(inside), f"its libraries are for {tags}")


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def op_problems(inside: Inside) -> list[str]:
    """installed_ops decides what DeepSpeed uses: each has its library, each library is one's."""
    claimed, there = set(inside.contents.installed_ops), {op.name for op in inside.ops}
    problems = [f"{op} is recorded, and has no library" for op in sorted(claimed - there)]
    problems += [f"{op} has a library, and is not recorded" for op in sorted(there - claimed)]
    known = {op.library for op in inside.ops}
    others = [name for name in inside.contents.libraries.values() if name not in known]
    problems += [f"{name} is of no recorded op" for name in others]
    if claimed and not inside.contents.accelerator:
        problems.append("no accelerator is recorded: DeepSpeed would ignore its ops")
    return problems


def _torch_pin(inside: Inside) -> str:
    lines = (line.replace(" ", "") for line in inside.contents.requires)
    return next((line for line in lines if line.startswith("torch==")), "any torch")


def torch_problems(inside: Inside) -> list[str]:
    """Ops load only with the torch minor that they were built for; METADATA must say so."""
    if not inside.contents.installed_ops:
        return []
    built = str(inside.contents.torch_info.get("version", ""))
    pin = _torch_pin(inside)
    problems = []
    if pin != f"torch=={built}.*":
        problems.append(f"its ops are recorded for torch {built or 'none'}, it requires {pin}")
    if inside.manifest:
        planned = inside.manifest.plan.torch
        if _minor(planned.version) != built:
            problems.append(f"its manifest says torch {planned.version}, its ops {built or 'none'}")
        told = str(inside.contents.torch_info.get("cuda_version", ""))
        if planned.cuda and told != planned.cuda:
            problems.append(f"its manifest says CUDA {planned.cuda}, its ops {told or 'none'}")
    return problems


def _minor(version: str) -> str:
    try:
        release = Version(version).release
    except InvalidVersion:
        return version
    return f"{release[0]}.{release[1]}" if len(release) > 1 else version


def manifest_problems(inside: Inside, manifest: Manifest) -> list[str]:
    """The manifest against what was read, op by op and field by field."""
    problems = []
    told = {op.name: op for op in manifest.ops}
    read = {op.name: op for op in inside.ops}
    for name in sorted(set(told) - set(read)):
        problems.append(f"{name}: no library {told[name].library}")
    for name in sorted(set(told) & set(read)):
        problems += [
            f"{name}: {field} is {getattr(read[name], field)}, not {getattr(told[name], field)}"
            for field in told[name].__struct_fields__
            if getattr(told[name], field) != getattr(read[name], field)
        ]
    plan, contents = manifest.plan, inside.contents
    if plan.accelerator != contents.accelerator:
        problems.append(f"accelerator {contents.accelerator!r}, not {plan.accelerator!r}")
    planned = {op.name for op in plan.built_ops()} - set(manifest.missing)
    if planned != set(contents.installed_ops):
        problems.append(f"planned were {_named(tuple(sorted(planned)))}")
    if plan.local_version not in contents.version:
        problems.append(f"version {contents.version} lacks {plan.local_version}")
    return problems


def _reproducible(manifest: Manifest) -> Check:
    if manifest.not_reproducible:
        return Check("reproducible", "skipped", f"not reproducible: {manifest.not_reproducible}")
    return Check("reproducible", "skipped", "it says so; to prove it, build it again and compare")


def tag_problems(inside: Inside) -> list[str]:
    """Whether its libraries are for the Python and the machine that its name says."""
    problems = []
    for tag in parse_wheel_filename(inside.path.name)[3] if inside.ops else ():
        python = f"{tag.interpreter}-{tag.abi}"
        parts = re.fullmatch(r"(?:linux|manylinux(?:1|2010|2014|_\d+_\d+))_(.+)", tag.platform)
        if parts is None:
            problems.append(f"{tag.platform} is not for libraries of Linux with glibc")
        for op in inside.ops:
            named = _CPYTHON.search(op.library)
            if named and python != f"cp{named[1]}-cp{named[1]}":
                problems.append(f"tagged {python}, {op.library} is for CPython {named[1]}")
            machine = inside.libraries[op.name].machine
            if parts and machine and parts[1] != machine:
                problems.append(f"tagged {tag.platform}, {op.name} is for {machine}")
        if inside.manifest and inside.manifest.plan.python.tag != python:
            problems.append(f"tagged {python}, its manifest says {inside.manifest.plan.python.tag}")
    return problems


def platform_problems(inside: Inside, manifest: Manifest) -> list[str]:
    """A tag may promise less than is true, never more."""
    of_torch = {name for name, whose in manifest.providers.items() if whose == "torch"}
    tag = platform_tag(inside.path.name)
    honest = honest_platform(tag, inside.ops, providers_of(inside.ops, of_torch))
    return [] if honest.tag == tag else [f"tagged {tag}, and {honest.reason}: {honest.tag}"]


def _platform(inside: Inside) -> str:
    return f"{platform_tag(inside.path.name)}: what its libraries need is there"
