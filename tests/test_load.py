"""The libraries of a wheel are really loaded, and what does not load is named."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from toys import toy_plan, write_tree

from deepbuild.build.load import failures, prove_loading
from deepbuild.errors import VerificationError
from deepbuild.host import Completed
from deepbuild.model import BuiltOp, PlannedPython, replace

GOOD = """
#include <Python.h>
static struct PyModuleDef module = { PyModuleDef_HEAD_INIT, "good_op", 0, -1 };
PyMODINIT_FUNC PyInit_good_op(void) { return PyModule_Create(&module); }
"""
UNDEFINED = "void nowhere(void); void PyInit_bad_op(void) { nowhere(); }"
CRASH = "#include <signal.h>\nvoid PyInit_crash_op(void) { raise(SIGILL); }"


@pytest.fixture
def prove(tmp_path):
    """Compile op libraries, pack them, and prove that they load beside a torch of no substance."""
    python = tmp_path / "python"
    write_tree(tmp_path, {"site/torch/__init__.py": ""})
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    plan = replace(toy_plan(tmp_path), python=PlannedPython(str(python), "3.11.0", "cp311-cp311"))

    def run(**sources: str) -> None:
        wheel = tmp_path / "a.whl"
        ops = tuple(BuiltOp(name, f"deepspeed/{name}_op.so", 1) for name in sources)
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in sources.items():
                archive.write(compiled(tmp_path, name, text), f"deepspeed/{name}_op.so")
        prove_loading(wheel, ops, plan, tmp_path)

    return run


def compiled(folder: Path, name: str, text: str) -> Path:
    source, library = folder / f"{name}.c", folder / f"{name}_op.so"
    source.write_text(text)
    include = sysconfig.get_path("include")
    command = ["gcc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def test_library_that_loads_is_proved(prove) -> None:
    prove(good=GOOD)


def test_nothing_to_load_is_no_failure(prove) -> None:
    prove()


def test_undefined_symbol_is_named(prove) -> None:
    with pytest.raises(VerificationError, match="do not load") as caught:
        prove(good=GOOD, bad=UNDEFINED)
    assert "bad: ImportError" in caught.value.found and "nowhere" in caught.value.found
    assert "good" not in caught.value.found
    assert caught.value.exit_code == 7


def test_crash_is_laid_to_the_op_that_crashed(prove) -> None:
    with pytest.raises(VerificationError) as caught:
        prove(good=GOOD, crash=CRASH, more=GOOD)
    assert "crash: illegal instruction" in caught.value.found
    assert "more not tried" in caught.value.found


def test_torch_that_does_not_import_proves_nothing() -> None:
    said = failures(Completed(1, "", "ImportError: no torch"), ["utils", "cpu_adam"])
    assert said == ["utils: ImportError: no torch; cpu_adam not tried"]


MODULE = GOOD.replace("good_op", "{0}_op")


def test_ops_that_take_symbols_from_pin_memory_load_behind_it(prove) -> None:
    """DeepSpeed shows its library to the whole process before it loads async_io and gds."""
    shared = MODULE.replace("{0}", "pin_memory") + "int pinned(void) { return 1; }\n"
    user = (
        MODULE.replace("{0}", "async_io") + "int pinned(void); int use(void) { return pinned(); }\n"
    )
    prove(async_io=user, pin_memory=shared)
    with pytest.raises(VerificationError) as caught:
        prove(async_io=user)
    assert "pinned" in caught.value.found
