"""GPUs and the code that runs on them."""

from __future__ import annotations

import re
from enum import IntEnum

from packaging.version import Version

from deepbuild import facts
from deepbuild.errors import UsageError
from deepbuild.model import Gpu, Machine


def number(arch: str) -> str:
    """
    >>> number("9.0a+PTX")
    '9.0'
    """
    return arch.removesuffix("+PTX").rstrip("af")


def visible_gpus(machine: Machine) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES does not hide."""
    return [gpu for gpu in machine.gpus.devices if gpu.visible]


def gpu_capability(gpu: Gpu) -> str:
    """What the driver says, else NVIDIA's list by the GPU's name; "" if neither knows."""
    return gpu.capability or facts.capability_of(gpu.name) or ""


def why_no_gpu(machine: Machine) -> str:
    """Why no arch follows from the GPUs of a machine."""
    devices = machine.gpus.devices
    if not devices:
        return "no GPU here and none named"
    if not visible_gpus(machine):
        return f"CUDA_VISIBLE_DEVICES={machine.gpus.visible_devices!r} hides the GPUs here"
    names = ", ".join(dict.fromkeys(gpu.name for gpu in devices))
    return f"the capability of {names} is unknown"


def unserved_gpus(machine: Machine, arches: tuple[str, ...]) -> list[str]:
    """A warning for each visible GPU that code for these arches does not run on: SASS runs within
    its major version from its minor on, PTX on all that is newer."""
    warnings = []
    for gpu in visible_gpus(machine):
        own = gpu_capability(gpu)
        if not own:
            warnings.append(f"{gpu.name}: capability unknown, so it may not be served; name it.")
        elif not any(runs_on(arch, own) for arch in arches):
            warnings.append(f"{gpu.name} ({own}) is not served by {';'.join(arches)}.")
    return list(dict.fromkeys(warnings))


def runs_on(arch: str, own: str) -> bool:
    """Whether code for an arch runs on a GPU of a capability."""
    code, gpu = Version(number(arch)), Version(own)
    return code <= gpu and (arch.endswith("+PTX") or code.major == gpu.major)


class Service(IntEnum):
    """How a library's device code serves a GPU, the best way last."""

    PTX = 1
    SAME_MAJOR = 2
    EXACT = 3


def service(own: str, sass: tuple[str, ...], ptx: tuple[str, ...]) -> Service | None:
    """How code for these capabilities, as it was found in a library, serves a GPU; None if not at
    all. What is only for one architecture or family ("9.0a", "10.0f") counts where it is exact.

    >>> service("8.6", ("8.0", "9.0"), ()), service("9.0", ("9.0a",), ())
    (<Service.SAME_MAJOR: 2>, <Service.EXACT: 3>)
    >>> service("12.0", ("9.0",), ("9.0",)), service("10.0", ("9.0a",), ("9.0a",))
    (<Service.PTX: 1>, None)
    """
    if any(_is_exact(code, own) for code in sass):
        return Service.EXACT
    gpu = Version(own)
    plain = [Version(code) for code in sass if code[-1].isdigit()]
    if any(code.major == gpu.major and code <= gpu for code in plain):
        return Service.SAME_MAJOR
    if any(_is_exact(code, own) or (code[-1].isdigit() and Version(code) <= gpu) for code in ptx):
        return Service.PTX
    return None


def _is_exact(code: str, own: str) -> bool:
    return re.fullmatch(re.escape(own) + "[af]?", code) is not None


def capability(name: str) -> str:
    """The compute capability of a GPU by its name.

    Raises:
        UsageError: unknown or ambiguous; the nearest names are given.
    """
    several = [word for word in name.split() if facts.capability_of(word)]
    if len(several) > 1:
        raise UsageError(
            f"--gpu {name} names several GPUs",
            found=name,
            wanted="names with commas between them",
            hint=f"--gpu {','.join(several)}",
        )
    found = facts.capability_of(name)
    if found:
        return found
    matches = facts.find_gpus(name)
    near = [f"{row.name} ({row.capability})" for row in matches] or facts.nearest_gpus(name)
    raise UsageError(
        f"--gpu {name} is {'ambiguous' if matches else 'not known'}",
        found=name,
        wanted="a GPU of NVIDIA's list" + (f", such as {', '.join(near[:4])}" if near else ""),
        hint='or give its compute capability: --arch "9.0"',
    )
