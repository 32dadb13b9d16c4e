"""Loads the libraries of ops, each as the module that it was built as. Arguments: op=path ...

After each op an answer is printed, so that what a crash was in can be told.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
import warnings


def load(path: str) -> str:
    """Load one library; the error, "" if it loaded."""
    name = os.path.basename(path).partition(".")[0]
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    try:
        assert spec is not None
        loader.exec_module(importlib.util.module_from_spec(spec))
    except BaseException as error:
        return "%s: %s" % (type(error).__name__, error)
    return ""


def main() -> None:
    warnings.simplefilter("ignore")
    import torch  # noqa: F401 (its libraries are what the ops link with)

    for argument in sys.argv[1:]:
        op, _, path = argument.partition("=")
        answer = {"op": op, "error": load(path)}
        print("@deepbuild-answer@" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
