"""Runs a DeepSpeed tree's own setup.py with compilers that only record: every planned op gives its
commands, under its own name. Arguments: a request (JSON).

An op whose build fails before a compiler is called is noted, and does not take the others along.
"""

import json
import os
import runpy
import shutil
import sys
import traceback
from typing import Any, Dict


def by_op(base: Any, op_of: Dict[str, str], failed: Dict[str, str]) -> Any:
    """The build_ext of the tree, which tells the compilers whose commands they record."""

    class ByOp(base):  # type: ignore[misc]
        def build_extension(self, ext: Any) -> None:
            op = os.environ["DEEPBUILD_OP"] = op_of.get(ext.name, ext.name)
            # Ops share object paths: what one has left must not look finished to the next.
            shutil.rmtree(self.build_temp, ignore_errors=True)
            try:
                super().build_extension(ext)
            except Exception as error:
                traceback.print_exc()
                failed[op] = "%s: %s" % (type(error).__name__, error)

    return ByOp


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    failed = {}  # type: Dict[str, str]
    sys.path.insert(0, os.getcwd())

    import setuptools  # type: ignore[import-untyped, unused-ignore]

    real_setup = setuptools.setup

    def setup(**keywords: Any) -> Any:
        commands = keywords.setdefault("cmdclass", {})
        if "build_ext" in commands:
            commands["build_ext"] = by_op(commands["build_ext"], request["ops"], failed)
        return real_setup(**keywords)

    setuptools.setup = setup
    sys.argv = ["setup.py", "--no-user-cfg", "build_ext", "--force"]
    runpy.run_path("setup.py", run_name="__main__")
    with open(request["result"], "w", encoding="utf-8") as file:
        json.dump(failed, file)


if __name__ == "__main__":
    main()
