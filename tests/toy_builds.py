"""Toy DeepSpeed trees with a setup.py of their own, and a place to build them in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toys import toy_plan, write_tree

from deepbuild.build import Place, build
from deepbuild.codec import plan_id
from deepbuild.host import LocalHost
from deepbuild.model import BuildPlan, EnvVar, Wheel, replace
from deepbuild.tell import Telling

SETUP = """
import json, os
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Build(build_ext):
    def build_extension(self, ext):
        if ext.name.endswith("gives_up_op"):
            raise RuntimeError("no headers for it")
        super().build_extension(ext)

version = open("version.txt").read().strip() + os.environ["DS_BUILD_STRING"]
known = json.load(open("ops.json"))
ops = {name: os.environ.get("DS_BUILD_" + name.upper()) == "1" for name in known}
with open("deepspeed/git_version_info_installed.py", "w") as file:
    file.write("version=%r\\n" % version)
    file.write("installed_ops=%r\\n" % ops)
    file.write("accelerator_name='cpu'\\ntorch_info={'version': '2.14'}\\n")
setup(
    name="deepspeed",
    version=version,
    install_requires=["torch>=2.0.0", "packaging"],
    packages=["deepspeed", "deepspeed.ops"],
    ext_modules=[
        Extension("deepspeed.ops.%s_op" % name, **known[name]) for name in sorted(ops) if ops[name]
    ],
    cmdclass={"build_ext": Build},
)
"""


def toy_tree(sources: Mapping[str, str], **more: dict[str, Any]) -> dict[str, str]:
    """The files of a tree with an op for each C source, by name; `more` are keywords of an op's
    setuptools.Extension."""
    ops = {name: {"sources": [f"csrc/{name}.c"]} for name in sources}
    for name, keywords in more.items():
        ops.setdefault(name, {}).update(keywords)
    return {
        "setup.py": SETUP,
        "version.txt": "0.19.8\n",
        "ops.json": json.dumps(ops),
        "op_builder/__init__.py": "",
        "deepspeed/__init__.py": "",
        "deepspeed/ops/__init__.py": "",
        **{f"csrc/{name}.c": text for name, text in sources.items()},
    }


TREE = toy_tree(
    {"good": "int good(void) { return 1; }\n", "bad": "int bad(void) { return nothing_here; }\n"}
)


@dataclass
class Told:
    """What the user was told."""

    notes: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)

    @property
    def telling(self) -> Telling:
        return Telling(self.notes.append, self.statuses.append)


@dataclass
class ToySite:
    """A toy tree, a place to build it in, and what was told."""

    root: Path
    told: Told = field(default_factory=Told)
    files: Mapping[str, str] = field(default_factory=lambda: TREE)

    def __post_init__(self) -> None:
        write_tree(self.root / "source", dict(self.files))
        self.output = self.root / "out"
        self.place = Place(
            self.root / "work",
            self.output,
            self.root / "sites",
            dict(os.environ),
            2**33,
            LocalHost(),
        )

    def plan(self, *ops: str, **changes: Any) -> BuildPlan:
        plan = toy_plan(self.root, *ops)
        wanted = {op.build_var: EnvVar("1", "planned") for op in plan.ops}
        plan = replace(plan, env=plan.env | wanted, **changes)
        return replace(plan, id=plan_id(plan))

    def build(self, plan: BuildPlan) -> Wheel:
        return build(plan, self.root / "source", self.place, self.told.telling)

    def delivered(self) -> list[str]:
        return sorted(path.name for path in self.output.glob("*"))
