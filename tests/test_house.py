"""The rules of the house: small modules, imports in one direction, one door to the system."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from deepbuild.facts._load import tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "deepbuild"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
DOOR = ("deepbuild.host",)
BANNED = ("subprocess", "os.environ", "os.getenv", "platform", "torch", "deepspeed")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it; `from a import b` counts as a, or as a.b
    where that is a module. What only the type checker sees counts as well."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            below = {f"{module}.{alias.name}" for alias in node.names}
            found |= (below & set(MODULES)) or {module}
    return found


def own(path: Path) -> set[str]:
    return {name for name in imported(path) if name.split(".")[0] == "deepbuild"}


def within(name: str, *layers: str) -> bool:
    return any(name == layer or name.startswith(f"{layer}.") for layer in layers)


def modules_of(layer: str) -> list[str]:
    return [name for name in MODULES if within(name, layer)]


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef):
            yield node


def test_modules_are_found():
    assert {"deepbuild", "deepbuild.cli", "deepbuild.plan", "deepbuild.plan.arches"} <= set(MODULES)


def test_every_package_is_installed():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = named["tool"]["setuptools"]["packages"]
    inside = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    assert set(packages) == inside | {"deepbuild.templates"}


@pytest.mark.parametrize("name", MODULES)
def test_module_is_short(name):
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= 400


def test_nine_functions_in_ten_are_short():
    lengths = [
        node.end_lineno - node.lineno + 1 for path in MODULES.values() for node in functions(path)
    ]
    assert len(lengths) > 200
    assert sum(length < 40 for length in lengths) >= 0.9 * len(lengths)


def test_functions_are_typed():
    """Public or not: arguments and result. mypy checks that the types are true."""
    bare = [
        f"{name}.{node.name}"
        for name, path in MODULES.items()
        for node in functions(path)
        if node.returns is None
    ]
    assert bare == []


# Who may import whom. A layer that is not here is free to import all but cli.
LAYERS = {
    "deepbuild.model": ("deepbuild.model",),
    "deepbuild.errors": (),
    "deepbuild.facts": ("deepbuild.facts",),
    "deepbuild.codec": ("deepbuild.model", "deepbuild.errors"),
    "deepbuild.report": (
        "deepbuild.model",
        "deepbuild.facts",
        "deepbuild.errors",
        "deepbuild.plan",
    ),
    "deepbuild.render": ("deepbuild.model",),
    "deepbuild.config": ("deepbuild.errors", "deepbuild.facts"),
    "deepbuild.host": ("deepbuild.host",),
    "deepbuild.wheelhouse": (
        *("deepbuild.wheelhouse", "deepbuild.wheel", "deepbuild.model", "deepbuild.codec"),
        *("deepbuild.host", "deepbuild.index", "deepbuild.errors", "deepbuild.addresses"),
        *("deepbuild.plan", "deepbuild.facts", "deepbuild.fit", "deepbuild.check"),
        "deepbuild.probe.cpu",
    ),
    "deepbuild.children": (),
    "deepbuild.plan": (
        *("deepbuild.plan", "deepbuild.model", "deepbuild.facts", "deepbuild.codec"),
        *("deepbuild.errors", "deepbuild.probe.cpu"),
    ),
    "deepbuild.probe": (
        *("deepbuild.probe", "deepbuild.host", "deepbuild.model", "deepbuild.errors"),
        *("deepbuild.codec", "deepbuild.children"),
    ),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer):
    assert modules_of(layer)
    wrong = {
        (name, found)
        for name in modules_of(layer)
        for found in own(MODULES[name]) - {"deepbuild"}
        if not within(found, *LAYERS[layer])
    }
    assert wrong == set()


def test_nobody_imports_the_command_line():
    callers = {name for name, path in MODULES.items() if "deepbuild.cli" in own(path)}
    assert callers <= {"deepbuild.__main__"}


def test_only_names_of_the_probe_are_used_in_a_plan():
    """plan is pure: of the probe it may use what turns one name into another."""
    for name in modules_of("deepbuild.plan"):
        for node in ast.walk(parsed(MODULES[name])):
            if isinstance(node, ast.ImportFrom) and within(node.module or "", "deepbuild.probe"):
                assert not any(alias.name.startswith("find_") for alias in node.names)


@pytest.mark.parametrize("name", [n for n in MODULES if not within(n, "deepbuild.children", *DOOR)])
def test_only_the_door_talks_to_the_system(name):
    path = MODULES[name]
    assert not any(within(found, *BANNED) for found in imported(path))
    touched = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert not touched & {*BANNED, "os.system", "os.popen", "os.putenv", "socket.socket"}


@pytest.mark.parametrize("name", modules_of("deepbuild.plan") + modules_of("deepbuild.model"))
def test_pure_parts_import_no_way_out(name):
    ways_out = ("os", "io", "time", "random", "pathlib", "shutil", "tempfile", "socket", "datetime")
    assert not any(within(found, *ways_out) for found in imported(MODULES[name]))


def test_children_can_be_started_alone():
    """They run in other interpreters, where there is no deepbuild."""
    for name in modules_of("deepbuild.children"):
        assert own(MODULES[name]) == set()


@pytest.mark.parametrize(
    "line",
    [
        "import subprocess",
        "from subprocess import run",
        "import platform",
        "import torch",
        "from torch.utils import cpp_extension",
        "import deepspeed",
        "import os\n\nHOME = os.environ",
        "import os\n\nHOME = os.getenv('HOME')",
    ],
)
def test_lint_refuses_a_second_door(line):
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select=TID251"]
    asked = [*command, "--stdin-filename=deepbuild/plan/new.py", "-"]
    done = subprocess.run(
        asked, input=line + "\n", cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "TID251" in done.stdout


def test_importing_the_package_prints_and_imports_nothing_heavy():
    heavy = "{'torch', 'deepspeed', 'httpx2', 'httpx', 'pynvml', 'elftools', 'archspec', 'jinja2'}"
    code = f"import sys, deepbuild.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
