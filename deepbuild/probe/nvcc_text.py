"""What nvcc says of itself, and what its crt/host_config.h says of host compilers. All pure."""

from __future__ import annotations

import re
from collections.abc import Iterable


def parse_nvcc_version(text: str) -> str:
    """The release in `nvcc --version`.

    >>> parse_nvcc_version("Cuda compilation tools, release 13.0, V13.0.88")
    '13.0'
    """
    found = re.search(r"release ([0-9]{1,3}\.[0-9]{1,3}),", text)
    return found.group(1) if found else ""


def parse_top(text: str) -> str:
    """The toolkit's folder in the output of `nvcc --dryrun`.

    >>> parse_top("#$ _HERE_=/opt/cuda-13.0/bin\\n#$ TOP=/opt/cuda-13.0/bin/..\\n")
    '/opt/cuda-13.0'
    """
    found = re.search(r"^#\$ TOP=(.+?)(?:/bin/\.\.)?/?\s*$", text, re.M)
    return found.group(1) if found else ""


def parse_folders(text: str, name: str) -> tuple[str, ...]:
    """The folders of a variable of nvcc's profile (INCLUDES, LIBRARIES) in `nvcc --dryrun`.

    >>> parse_folders('#$ INCLUDES="-I/usr/include/cuda"  \\n#$ LIBRARIES=-L/a', "INCLUDES")
    ('/usr/include/cuda',)
    """
    line = re.search(rf"^#\$ {name}=(.*)$", text, re.M)
    words = re.findall(r'-[IL]\s*"?([^"\s]+)', line.group(1)) if line else []
    return tuple(word for word in words if word.startswith("/"))


def parse_gpu_arches(text: str) -> tuple[str, ...]:
    """The capabilities in `nvcc --list-gpu-arch`.

    >>> parse_gpu_arches("compute_75\\ncompute_120\\n")
    ('7.5', '12.0')
    """
    pairs = [(int(a), int(b)) for a, b in re.findall(r"^compute_([0-9]+)([0-9])$", text, re.M)]
    return tuple(f"{major}.{minor}" for major, minor in sorted(pairs))


def parse_gcc_max(text: str) -> int | None:
    """The newest gcc that a crt/host_config.h accepts.

    >>> parse_gcc_max("#if __GNUC__ > 15\\n#error -- unsupported GNU version!")
    15
    """
    found = re.search(r"^#if __GNUC__ > ([0-9]+)", text, re.M)
    return int(found.group(1)) if found else None


def parse_clang_max(text: str) -> int | None:
    """The newest clang that a crt/host_config.h accepts.

    >>> parse_clang_max("#if (__clang_major__ >= 21) || (__clang_major__ < 3)")
    20
    """
    found = re.search(r"^#if \(?__clang_major__ >= ([0-9]+)\)?", text, re.M)
    return int(found.group(1)) - 1 if found else None


def link_names(files: Iterable[str]) -> tuple[str, ...]:
    """What a linker may be asked for with -lNAME in a folder of libraries, once the overlay has
    given `libX.so.1` its plain link.

    >>> link_names(["libcurand.so.10", "libcudart.so", "libcudart_static.a", "README"])
    ('cudart', 'cudart_static', 'curand')
    """
    pattern = re.compile(r"^lib(.+?)\.(?:so(?:\.\d+)*|a)$")
    return tuple(sorted({found.group(1) for file in files if (found := pattern.match(file))}))
