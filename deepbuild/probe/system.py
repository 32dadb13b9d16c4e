"""The distribution, and the programs beside the compilers."""

from __future__ import annotations

import re

from deepbuild.host import Host
from deepbuild.model import System, Tools

# program -> the family of package names that it takes
_PACKAGE_MANAGERS = {
    "apt-get": "apt",
    "dnf": "dnf",
    "yum": "yum",
    "zypper": "zypper",
    "pacman": "pacman",
    "apk": "apk",
}


def find_system(host: Host, libc: str) -> System:
    values = parse_os_release(host.read_text("/etc/os-release") or "")
    return System(
        id=values.get("ID", "linux"),
        version=values.get("VERSION_ID", ""),
        name=values.get("PRETTY_NAME", "unknown Linux"),
        arch=host.arch(),
        libc=libc,
        package_manager=find_package_manager(host),
        root=host.is_root(),
        wsl="microsoft" in (host.read_text("/proc/version") or "").lower(),
        board=find_board(host),
    )


def find_package_manager(host: Host) -> str:
    """The family of package names that is installed from here; "" where no program for it is."""
    families = (family for program, family in _PACKAGE_MANAGERS.items() if host.which(program))
    return next(families, "")


def find_board(host: Host) -> str:
    """The model of a Jetson, as its device tree names it; "" on other machines."""
    model = (host.read_text("/proc/device-tree/model") or "").strip("\0\n ")
    return model if "Jetson" in model or host.file_id("/etc/nv_tegra_release") else ""


def find_tools(host: Host) -> Tools:
    return Tools(ninja=_version(host, "ninja"), git=_version(host, "git"))


def _version(host: Host, program: str) -> str:
    path = host.which(program)
    if not path:
        return ""
    done = host.run([path, "--version"], identity=(path,))
    found = re.search(r"\d+\.\d+[\w.]*", done.stdout)
    return found.group(0) if done.ok and found else ""


def parse_os_release(text: str) -> dict[str, str]:
    """
    >>> parse_os_release('ID=debian\\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\\n')["ID"]
    'debian'
    """
    pairs = re.findall(r'^(\w+)=["\']?(.*?)["\']?\s*$', text, re.M)
    return dict(pairs)
