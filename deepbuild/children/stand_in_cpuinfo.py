"""Stands in for py-cpuinfo in a build: DeepSpeed's builders ask it for -march and a SIMD macro,
which the shims then replace by the planned ones. Without any, releases up to 0.19.6 fail on ARM."""

import platform
from typing import Dict

ARCHES = {"x86_64": "X86_64", "aarch64": "ARM_8", "ppc64le": "PPC_64"}


def get_cpu_info() -> Dict[str, str]:
    """What builders read of it, in py-cpuinfo's words."""
    machine = platform.machine()
    return {"arch": ARCHES.get(machine, machine), "flags": "", "vendor_id_raw": ""}
