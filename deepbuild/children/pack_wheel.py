"""Packs a DeepSpeed tree, whose libraries are in place, into a wheel by its own setup.py.
Arguments: a request (JSON).

What the wheel says of itself (version, installed_ops, the torch that it requires) is made true
before it is packed.
"""

import json
import os
import runpy
import sys
from typing import Any, Dict, List

INFO = os.path.join("deepspeed", "git_version_info_installed.py")


def pinned(requirements: List[str], torch: str) -> List[str]:
    """The requirements with torch pinned: ops load only with the torch that they were built for."""
    rest = [line for line in requirements if not is_torch(line)]
    return [*rest, torch]


def is_torch(requirement: str) -> bool:
    name = requirement.strip().lower()
    return name.startswith("torch") and not name[5:6].isalnum() and name[5:6] not in {"-", "_", "."}


def tell_the_truth(failed: List[str], version: str) -> None:
    """Take ops that failed out of installed_ops, and name the version by what is really there."""
    scope: Dict[str, Any] = {}
    with open(INFO, encoding="utf-8") as file:
        text = file.read()
    exec(text, scope)
    ops = {name: wanted and name not in failed for name, wanted in scope["installed_ops"].items()}
    with open(INFO, "a", encoding="utf-8") as file:
        file.write("installed_ops=%r\nversion=%r\n" % (ops, version))


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    sys.path.insert(0, os.getcwd())

    import setuptools  # type: ignore[import-untyped, unused-ignore]

    real_setup = setuptools.setup

    def setup(**keywords: Any) -> Any:
        keywords["install_requires"] = pinned(keywords["install_requires"], request["torch"])
        keywords["version"] += request["without"]
        tell_the_truth(request["failed"], keywords["version"])
        return real_setup(**keywords)

    setuptools.setup = setup
    # bdist_wheel alone would build the ops once more: so each step is named, and it only packs.
    steps = ["build_py", "build_scripts", "--executable=python"]
    pack = ["bdist_wheel", "--skip-build", "--dist-dir", request["dist"]]
    sys.argv = ["setup.py", "--no-user-cfg", *steps, *pack]
    runpy.run_path("setup.py", run_name="__main__")


if __name__ == "__main__":
    main()
