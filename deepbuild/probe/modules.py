"""Environment modules (Lmod, Tcl modules) that could be loaded for a toolkit or a compiler."""

from __future__ import annotations

import re

from deepbuild.host import Host

_FAMILIES = re.compile(r"^(cuda(?!-samples)|gcc)[\w.-]*$|^(nvhpc|nvidia-hpc-sdk|gnu[0-9]*)$", re.I)
_MOST = 400  # of a site's thousands of modules, no more folders than this are looked into


def find_modules(host: Host) -> tuple[str, ...]:
    """The names as `module load` takes them ("CUDA/12.4.0"), or () where there are no modules.

    Module trees are NAME/VERSION or NAME/VERSION.lua below each folder of MODULEPATH; some sites
    put a folder for a category between.
    """
    found: list[str] = []
    folders = [folder for folder in host.env().get("MODULEPATH", "").split(":") if folder]
    for folder in folders:
        for name in host.list_dir(folder)[:_MOST]:
            found += _modules(host, folder, name) or _of_category(host, folder, name)
    return tuple(dict.fromkeys(found))


def _modules(host: Host, folder: str, name: str) -> list[str]:
    if not _FAMILIES.match(name.rpartition("/")[2]):
        return []
    return [f"{name}/{version}" for version in _versions(host, f"{folder}/{name}")]


def _of_category(host: Host, folder: str, name: str) -> list[str]:
    below = host.list_dir(f"{folder}/{name}")[:_MOST]
    return [module for each in below for module in _modules(host, folder, f"{name}/{each}")]


def _versions(host: Host, folder: str) -> list[str]:
    names = (name.removesuffix(".lua") for name in host.list_dir(folder))
    return [name for name in names if re.match(r"v?[0-9]|toolkit", name)]
