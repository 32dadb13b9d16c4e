"""Headers that only some ops need, wherever they may lie."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deepbuild.host import Host
from deepbuild.model import Header, Interpreter, Toolkit, Torch
from deepbuild.probe.toolkit_places import wheel_sites

CUTLASS = "cutlass/cutlass.h"
_OPTIONAL = ("libaio.h", "nccl.h", "cufile.h", "cuda_profiler_api.h", CUTLASS)
_CUTLASS_VARIABLES = ("CUTLASS_PATH", "CUTLASS_ROOT", "CUTLASS_HOME")
_CUTLASS_PLACES = ("/usr/local/cutlass", "/opt/cutlass")


def find_headers(
    host: Host, toolkits: Sequence[Toolkit], python: Interpreter | None, torch: Torch | None
) -> dict[str, tuple[Header, ...]]:
    """For each optional header that is anywhere, the folders that hold it, the nearest first."""
    common = [pack.include for pack in (torch.nvidia if torch else ()) if pack.include]
    common += [folder for kit in toolkits for folder in kit.include]
    prefixes = [python.prefix if python else "", host.env().get("CONDA_PREFIX", "")]
    common += [f"{prefix}/include" for prefix in prefixes if prefix]
    common += ["/usr/local/include", "/usr/include"]
    folders = dict.fromkeys(_OPTIONAL, common)
    folders[CUTLASS] = [*_cutlass_folders(host, python), *common]
    found = {
        name: tuple(
            Header(folder, _cutlass_version(host, folder) if name == CUTLASS else "")
            for folder in dict.fromkeys(places)
            if host.file_id(f"{folder}/{name}")
        )
        for name, places in folders.items()
    }
    return {name: headers for name, headers in found.items() if headers}


def _cutlass_folders(host: Host, python: Interpreter | None) -> list[str]:
    """A checkout that a variable names, the nvidia-cutlass wheel, the usual places."""
    named = [host.env().get(variable, "") for variable in _CUTLASS_VARIABLES]
    tops = [top.rstrip("/") for top in named if top.startswith("/")]
    wheels = [f"{site}/cutlass_library/source" for site in wheel_sites(python)]
    return [f"{top}/include" for top in (*tops, *wheels, *_CUTLASS_PLACES)] + tops


def _cutlass_version(host: Host, folder: str) -> str:
    return parse_cutlass_version(host.read_text(f"{folder}/cutlass/version.h") or "")


def parse_cutlass_version(text: str) -> str:
    """
    >>> parse_cutlass_version("#define CUTLASS_MAJOR 3\\n#define CUTLASS_MINOR 5\\n")
    '3.5'
    """
    numbers = dict(re.findall(r"#define CUTLASS_(MAJOR|MINOR)\s+([0-9]+)", text))
    return f"{numbers['MAJOR']}.{numbers['MINOR']}" if len(numbers) == 2 else ""
