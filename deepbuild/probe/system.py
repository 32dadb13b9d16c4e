"""The distribution, and the programs and libraries beside the compilers."""

from __future__ import annotations

import re

from deepbuild.host import Host
from deepbuild.model import System, Tools

# program -> the family of package names that it takes
_PACKAGE_MANAGERS = {
    "apt-get": "apt",
    "dnf": "dnf",
    "yum": "dnf",
    "zypper": "zypper",
    "pacman": "pacman",
    "apk": "apk",
}


def find_system(host: Host, libc: str) -> System:
    values = parse_os_release(host.read_text("/etc/os-release") or "")
    families = (family for program, family in _PACKAGE_MANAGERS.items() if host.which(program))
    manager = next(families, "")
    return System(
        id=values.get("ID", "linux"),
        version=values.get("VERSION_ID", ""),
        name=values.get("PRETTY_NAME", "unknown Linux"),
        arch=host.arch(),
        libc=libc,
        package_manager=manager,
        root=host.is_root(),
    )


def find_tools(host: Host) -> Tools:
    folders = ("/usr/lib", f"/usr/lib/{host.arch()}-linux-gnu", "/usr/lib64", "/usr/local/lib")
    headers = ("/usr/include/libaio.h", "/usr/local/include/libaio.h")
    return Tools(
        ninja=_version(host, "ninja"),
        git=_version(host, "git"),
        libaio_header=next((path for path in headers if host.file_id(path)), ""),
        libaio_library=next(
            (path for folder in folders if host.file_id(path := f"{folder}/libaio.so")), ""
        ),
    )


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
