"""What a need is called in each package manager, and the command that installs it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from deepbuild.facts._load import load_rows, read_table

# Installs into an environment of the user's, so root would be wrong there.
UNPRIVILEGED = frozenset({"conda"})
_SAME_PACKAGES = {"yum": "dnf"}


@dataclass(frozen=True)
class PackageRow:
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
    return "cuda-toolkit" if int(cuda.partition(".")[0]) >= 12 else "cuda-toolkit-11"


def install_command(
    need: str, manager: str, *, root: bool = False, **fields: str | int
) -> str | None:
    """The exact command that installs ``need``; None where the table has no package for it.

    ``fields`` fill the templates: N for "gcc-N", major and minor for "python-dev" and
    "cuda-toolkit"; a missing one also gives None. ``root=True`` drops sudo.

    >>> install_command("libaio", "apt")
    'sudo apt-get install -y libaio-dev'
    >>> install_command("gcc-N", "apt", root=True, N=13)
    'apt-get install -y g++-13'
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
    return f"{sudo}{read_table('packages')['commands'][manager]} {packages}"
