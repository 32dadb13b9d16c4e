"""The CPU, by archspec's tables, from /proc/cpuinfo."""

from __future__ import annotations

import re
from collections.abc import Iterable

from deepbuild.host import Host
from deepbuild.model import Cpu

_ARM_VENDORS = {"0x41": "ARM", "0x42": "Broadcom", "0x43": "Cavium", "0x46": "Fujitsu"}
_ARM_VENDORS |= {"0x48": "HiSilicon", "0x4e": "Nvidia", "0x51": "Qualcomm", "0x61": "Apple"}
_ARM_VENDORS |= {"0xc0": "Ampere"}


def find_cpu(host: Host) -> Cpu:
    return parse_cpuinfo(host.read_text("/proc/cpuinfo") or "", host.arch())


def parse_cpuinfo(text: str, arch: str) -> Cpu:
    """Name a CPU from /proc/cpuinfo: the most special microarchitecture whose features are all
    there, and the most special generic level (archspec's tables).

    >>> parse_cpuinfo("vendor_id : GenuineIntel\\nflags : mmx sse sse2\\n", "x86_64").level
    'x86-64'
    """
    vendor = _value(text, "vendor_id") or _ARM_VENDORS.get(_value(text, "CPU implementer"), "")
    flags = frozenset(_value(text, "flags|Features").split())
    model = _value(text, "model name|cpu") or _value(text, "CPU part")
    name, level = match(arch, vendor, flags, _value(text, "CPU part"))
    return Cpu(name, level, vendor or "generic", model)


def match(arch: str, vendor: str, flags: Iterable[str], part: str = "") -> tuple[str, str]:
    """archspec's best name and best generic level for a set of features, by its own rules
    (archspec/cpu/detect.py); ("", "") if it does not know the architecture.

    A target without features (armv9.2a, power10le) would fit every CPU, so only the root of a
    family may have none. `part` is ARM's number of the core.
    """
    import archspec.cpu

    have = archspec.cpu.Microarchitecture("", [], vendor, set(flags), {})
    family = [t for t in archspec.cpu.TARGETS.values() if str(t.family) == arch]
    told = [t for t in family if t.features or t.name == arch]
    fits = [t for t in told if all(feature in have for feature in t.features)]
    if not fits:
        return "", ""
    level = max((t for t in fits if t.vendor == "generic"), key=_depth)
    mine = [t for t in fits if t.vendor == vendor and level in t.ancestors]
    exact = [t for t in mine if part and t.cpu_part == part]
    best = max(exact or mine or [level], key=_depth)
    return public_name(best.name), public_name(level.name)


def public_name(name: str) -> str:
    """archspec's name as compilers and people write it.

    >>> public_name("x86_64_v3"), public_name("zen3")
    ('x86-64-v3', 'zen3')
    """
    return name.replace("_", "-") if name.startswith("x86_64") else name


def _depth(target: object) -> tuple[int, int]:
    return len(target.ancestors), len(target.features)  # type: ignore[attr-defined]


def _value(text: str, names: str) -> str:
    found = re.search(rf"^(?:{names})\s*:\s*(.*?)\s*$", text, re.M)
    return found.group(1) if found else ""
