"""Loads the libraries of ops, each as the module that it was built as. Arguments: a stand-in for
the driver's library ("" for none), then op=path ...

After each op an answer is printed, so that what a crash was in can be told.
"""

import ctypes
import importlib.machinery
import importlib.util
import json
import os
import sys
import warnings

# Other ops take symbols from these, so that DeepSpeed shows them to the whole process first
# (op_builder/pin_memory_load.py).
SHARED = ("pin_memory",)


def stand_in_for_driver(path: str) -> None:
    """Where there is no driver, ops that link its library find the stand-in by its soname: all
    but the calls can be proved."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        if path:
            ctypes.CDLL(path)


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

    stand_in_for_driver(sys.argv[1])
    ops = [argument.partition("=")[::2] for argument in sys.argv[2:]]
    for op, path in sorted(ops, key=lambda pair: pair[0] not in SHARED):
        error = load(path)
        if op in SHARED and not error:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        answer = {"op": op, "error": error}
        print("@deepbuild-answer@" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
