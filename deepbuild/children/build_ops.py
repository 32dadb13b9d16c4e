"""Runs a DeepSpeed tree's own setup.py: every planned op, then the wheel. Arguments: a request
(JSON) and the file for the result.

An op that fails is noted and does not take the others along; what the wheel says of itself
(installed_ops, the torch that it requires) is made true before it is packed.
"""

import json
import os
import runpy
import sys
import traceback
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
    scope = {}  # type: Dict[str, Any]
    with open(INFO, encoding="utf-8") as file:
        text = file.read()
    exec(text, scope)
    ops = {name: wanted and name not in failed for name, wanted in scope["installed_ops"].items()}
    with open(INFO, "a", encoding="utf-8") as file:
        file.write("installed_ops=%r\nversion=%r\n" % (ops, version))


def keeping_on(base: Any, request: Dict[str, Any], failed: Dict[str, str]) -> Any:
    """The build_ext of the tree, which goes on after an op that fails."""
    op_of = request["ops"]  # type: Dict[str, str]

    class KeepingOn(base):  # type: ignore[misc]
        def build_extension(self, ext: Any) -> None:
            op = op_of.get(ext.name, ext.name)
            print("@deepbuild-op@" + op, flush=True)
            try:
                super().build_extension(ext)
            except Exception as error:
                traceback.print_exc()
                failed[op] = "%s: %s" % (type(error).__name__, error)

        def run(self) -> None:
            super().run()
            metadata = self.distribution.metadata
            metadata.version += "".join(request["without"][op] for op in sorted(failed))
            tell_the_truth(list(failed), metadata.version)

    return KeepingOn


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    failed = {}  # type: Dict[str, str]
    sys.path.insert(0, os.getcwd())

    import setuptools  # type: ignore[import-untyped, unused-ignore]

    real_setup = setuptools.setup

    def setup(**keywords: Any) -> Any:
        keywords["install_requires"] = pinned(keywords["install_requires"], request["torch"])
        commands = keywords.setdefault("cmdclass", {})
        if "build_ext" in commands:
            commands["build_ext"] = keeping_on(commands["build_ext"], request, failed)
        return real_setup(**keywords)

    setuptools.setup = setup
    # bdist_wheel alone would copy the package before the ops are known, and after another command
    # it would build the ops a second time: so each step is named, and it only packs.
    steps = ["build_ext", "build_py", "build_scripts", "--executable=python"]
    pack = ["bdist_wheel", "--skip-build", "--dist-dir", request["dist"]]
    sys.argv = ["setup.py", *steps, *pack]
    runpy.run_path("setup.py", run_name="__main__")
    with open(request["result"], "w", encoding="utf-8") as file:
        json.dump({"failed": failed}, file)


if __name__ == "__main__":
    main()
