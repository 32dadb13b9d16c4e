"""What stands against a wheel in an environment: tags, the C library, torch. Pure."""

from __future__ import annotations

import re

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from deepbuild.model import Interpreter, Torch
from deepbuild.plan import accelerator_for
from deepbuild.wheel.contents import Contents

_PLATFORM = re.compile(
    r"(?:linux|(?P<many>manylinux(?:1|2010|2014|_(?P<major>\d+)_(?P<minor>\d+)))"
    r"|(?P<musl>musllinux_\d+_\d+))_(?P<arch>.+)"
)
_LEGACY = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}  # PEP 600


def tag_problems(wheel: str, python: Interpreter, libc: str) -> list[str]:
    """Why pip would refuse a wheel by its name; empty if one of its tags is taken.

    Args:
        wheel: its file name.
        libc: what the interpreter runs on ("glibc 2.36"), "" where that is not known.
    """
    tags = parse_wheel_filename(wheel)[3]
    mine = sorted((tag for tag in tags if _is_for(tag, python.tag)), key=str)
    if not mine:
        return [f"it is for {', '.join(sorted(map(str, tags)))}, this is {python.tag}"]
    problems = [_platform_problems(tag.platform, python, libc) for tag in mine]
    return min(problems, key=len)


def _is_for(tag: Tag, python: str) -> bool:
    """
    >>> _is_for(Tag("cp311", "abi3", "any"), "cp311-cp311")
    True
    """
    interpreter, abi = python.split("-")
    if tag.interpreter.startswith("py3") and tag.abi == "none":
        return True
    return tag.interpreter == interpreter and tag.abi in {abi, "abi3"}


def _platform_problems(platform: str, python: Interpreter, libc: str) -> list[str]:
    parts = _PLATFORM.fullmatch(platform)
    if parts is None:
        return [] if platform == "any" else [f"it is for {platform}, this is Linux"]
    arch = python.platform_tag.removeprefix("linux_")
    if parts["arch"] != arch:
        return [f"it is for {parts['arch']}, this is {arch}"]
    if parts["musl"] and libc.startswith("glibc"):
        return [f"it is for {parts['musl']}, and here is {libc}"]
    return too_new_for(platform, libc)


def too_new_for(platform: str, libc: str) -> list[str]:
    """
    >>> too_new_for("manylinux_2_35_x86_64", "glibc 2.31")
    ['it needs glibc 2.35 or newer, and here is glibc 2.31']
    >>> too_new_for("manylinux_2_28_x86_64", "glibc 2.31"), too_new_for("linux_x86_64", "musl 1.2")
    ([], [])
    """
    parts = _PLATFORM.fullmatch(platform)
    if parts is None or not parts["many"]:
        return []
    return libc_problems(_LEGACY.get(parts["many"]) or f"{parts['major']}.{parts['minor']}", libc)


def libc_problems(least: str, libc: str) -> list[str]:
    """
    Args:
        least: the oldest glibc that does.
        libc: the C library here, "" where it is not known.
    """
    name, _, version = libc.partition(" ")
    if not version or (name == "glibc" and Version(version) >= Version(least)):
        return []
    return [f"it needs glibc {least} or newer, and here is {libc}"]


def torch_problems(contents: Contents, torch: Torch) -> list[str]:
    """What pip, or DeepSpeed at run time, would hold against a wheel's ops with this torch."""
    for line in contents.requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.name == "torch" and not requirement.specifier.contains(torch.version, True):
            return [f"it requires {requirement}, torch here is {torch.version}"]
    return _claim_problems(contents, torch) if contents.installed_ops else []


def _claim_problems(contents: Contents, torch: Torch) -> list[str]:
    """What DeepSpeed itself would hold against the ops of a wheel at run time: it ignores those
    recorded for another accelerator, and refuses those of another torch or CUDA."""
    wrong = []
    accelerator = accelerator_for(torch)
    if contents.accelerator != accelerator:
        said = contents.accelerator or "none"
        wrong.append(f"its ops are recorded for accelerator {said}, torch here means {accelerator}")
    built = str(contents.torch_info.get("version", ""))
    if built and built != ".".join(torch.version.split(".")[:2]):
        wrong.append(f"its ops were built for torch {built}, torch here is {torch.version}")
    cuda = str(contents.torch_info.get("cuda_version", ""))
    if contents.accelerator == "cuda" and cuda != (torch.cuda or ""):
        wrong.append(f"its ops were built for CUDA {cuda}, torch here has {torch.cuda or 'none'}")
    return wrong
