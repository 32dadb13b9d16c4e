"""What only an imported torch can say: the arches it was built for, its C++ ABI, and the libstdc++
that is loaded with it."""

import json
import os
import re
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402


def loaded(name: str) -> str:
    """The path of a library of this process, "" if it is not loaded."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = [line.split(None, 5)[-1].strip() for line in file if "/" in line]
    return next((path for path in paths if os.path.basename(path).startswith(name)), "")


def level(path: str) -> str:
    """The newest GLIBCXX version that a libstdc++ has."""
    with open(path, "rb") as file:
        found = re.findall(rb"GLIBCXX_3\.4\.(\d+)\x00", file.read())
    return "3.4.%d" % max(map(int, found)) if found else ""


def main() -> None:
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: "")() or ""
    runtime = loaded("libstdc++.so.6")
    answer = {
        "version": torch.__version__,
        "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        "arch_flags": flags,
        "runtime": {"path": runtime, "level": level(runtime)} if runtime else None,
    }
    print("@deepbuild-answer@" + json.dumps(answer))


main()
