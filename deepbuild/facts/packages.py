"""What a need is called in each package manager, and the command that installs it."""

from __future__ import annotations

from functools import cache

import msgspec
from packaging.version import Version

from deepbuild.facts._load import load_rows, read_table

# Installs into an environment of the user's, so root would be wrong there.
UNPRIVILEGED = frozenset({"conda"})
_SAME_PACKAGES = {"yum": "dnf"}


class PackageRow(msgspec.Struct, frozen=True):
    """Package names of one need, a template each ("g++-{N}"); None where there is no package."""

    need: str
    source: str
    apt: str | None = None
    dnf: str | None = None
    pacman: str | None = None
    zypper: str | None = None
    apk: str | None = None
    conda: str | None = None

    def names(self, manager: str) -> str | None:
        """The template for ``manager``; None where it is unknown or lacks the package."""
        column = _SAME_PACKAGES.get(manager, manager)
        found = getattr(self, column, None) if manager in managers() else None
        return found if isinstance(found, str) else None


@cache
def package_rows() -> tuple[PackageRow, ...]:
    """Every need of the table (source: the distributions' package lists, per group)."""
    return load_rows("packages", PackageRow)


@cache
def managers() -> tuple[str, ...]:
    """The package managers that the table knows, by the name of their program."""
    return tuple(read_table("packages")["commands"])


def toolkit_need(cuda: str) -> str:
    """The need that stands for a CUDA toolkit: conda's package for 11 has another name.

    >>> toolkit_need("13.0"), toolkit_need("11.8")
    ('cuda-toolkit', 'cuda-toolkit-11')
    """
    return "cuda-toolkit" if Version(cuda).major >= 12 else "cuda-toolkit-11"


def install_command(
    need: str, manager: str, *, root: bool = False, **fields: str | int
) -> str | None:
    """The exact command that installs ``need``; None where the table has no package for it.

    ``fields`` fill the templates: N for "gcc-N", major and minor for "python-dev" and
    "cuda-toolkit"; a missing one also gives None. ``root=True`` drops sudo.

    >>> install_command("libaio", "apt")
    'sudo apt-get update && sudo apt-get install -y libaio-dev'
    >>> install_command("gcc-N", "dnf", root=True, N=13)
    'dnf install -y gcc-toolset-13-gcc-c++'
    """
    row = next((row for row in package_rows() if row.need == need), None)
    names = row.names(manager) if row else None
    if names is None:
        return None
    try:
        packages = names.format(**fields)
    except KeyError:
        return None
    sudo = "" if root or manager in UNPRIVILEGED else "sudo "
    table = read_table("packages")
    lists = table["lists"].get(manager)
    first = f"{sudo}{lists} && " if lists else ""
    return f"{first}{sudo}{table['commands'][manager]} {packages}"


class CudaRepositoryRow(msgspec.Struct, frozen=True):
    """NVIDIA's repository for a distribution: its folder for each processor, "" where unknown."""

    ids: str
    version: str
    command: str
    source: str
    x86_64: str = ""
    aarch64: str = ""


@cache
def cuda_repository_rows() -> tuple[CudaRepositoryRow, ...]:
    """Every repository of the table (source: NVIDIA's installation guide, per group)."""
    return load_rows("cuda_repositories", CudaRepositoryRow)


def cuda_repository_command(
    distribution: str, version: str, arch: str, *, root: bool = False
) -> str | None:
    """The exact command that sets NVIDIA's repository up; None where the table knows none.

    >>> cuda_repository_command("debian", "12", "x86_64", root=True).rpartition(" && ")[2]
    'dpkg -i cuda-keyring_1.1-1_all.deb'
    >>> cuda_repository_command("alpine", "3.20", "x86_64")
    """
    for row in cuda_repository_rows():
        folder = {"x86_64": row.x86_64, "aarch64": row.aarch64}.get(arch)
        here = distribution in row.ids.split() and f"{version}.".startswith(f"{row.version}.")
        if here and folder:
            return _set_up(row.command, folder, "" if root else "sudo ")
    return None


def _set_up(command: str, folder: str, sudo: str) -> str:
    table = read_table("cuda_repositories")
    name = folder.partition("/")[0]
    words: str = table["commands"][command]
    return words.format(url=f"{table['url']}/{folder}", name=name, sudo=sudo)
