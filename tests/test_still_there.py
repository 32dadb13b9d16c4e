"""A plan that is days old: everything it names must still be there, be the same, and work."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import FakeHost, nvcc_answers, said
from toys import toy_plan

from deepbuild.build.still_there import require_still_there
from deepbuild.errors import PlanBlocked
from deepbuild.model import PlannedCompiler, PlannedToolkit
from deepbuild.model import replace as changed


class Site:
    """A fake machine, and a plan that was made on it."""

    def __init__(self, tmp_path: Path) -> None:
        self.host = FakeHost()
        self.cxx = self.host.add_compiler("12.2.0", default=True)
        self.home = self.host.add_toolkit("13.0")
        compiler = PlannedCompiler("gcc", "12.2.0", "/usr/bin/gcc", "/usr/bin/g++")
        nvcc, include = f"{self.home}/bin/nvcc", (f"{self.home}/include",)
        toolkit = PlannedToolkit("13.0", self.home, "x", nvcc, include, ())
        self.plan = changed(toy_plan(tmp_path, "good"), compiler=compiler, toolkit=toolkit)
        self.version_py = f"{self.plan.torch.root}/version.py"
        self.host.files[self.plan.python.executable] = ""
        self.host.files[self.version_py] = f"__version__ = '{self.plan.torch.version}'"

    def found(self) -> list[str]:
        with pytest.raises(PlanBlocked, match="does not fit this machine") as caught:
            require_still_there(self.plan, self.host)
        assert "deepbuild plan" in caught.value.hint
        return caught.value.found.splitlines()


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def test_machine_as_it_was(site):
    require_still_there(site.plan, site.host)


def test_plan_without_tools(site):
    require_still_there(
        changed(site.plan, compiler=None, toolkit=None), FakeHost(files=site.host.files)
    )


def test_tools_that_are_gone_are_told_together(site):
    del site.host.links["/usr/bin/g++"]
    del site.host.files[f"{site.home}/bin/nvcc"]
    assert site.found() == ["no C++ compiler at /usr/bin/g++", f"no nvcc at {site.home}/bin/nvcc"]


def test_torch_that_was_changed_since_is_told(site):
    site.host.files[site.version_py] = "__version__ = '2.15.0'"
    assert "another torch than 2.14.1" in site.found()[0]


def test_compiler_that_was_replaced(site):
    site.host.add_compiler("13.1.0", default=True)
    assert site.found() == ["/usr/bin/g++ is gcc 13.1.0, not gcc 12.2.0"]


def test_compiler_that_lost_a_part(site):
    site.host.add_compiler("12.2.0", default=True, broken="cc1plus")
    assert "cc1plus" in site.found()[0]


def test_toolkit_of_another_version_in_its_place(site):
    site.host.add_program(f"{site.home}/bin/nvcc", nvcc_answers(site.home, "13.2", ()))
    assert site.found() == [f"{site.home}/bin/nvcc is 13.2, not 13.0"]


def test_nvcc_that_does_not_answer_any_more(site):
    site.host.programs[f"{site.home}/bin/nvcc", "--version"] = said("", "cannot open", 127)
    assert "is broken, not 13.0" in site.found()[0]


def test_toolkit_that_lost_a_part(site):
    site.host.kernels[f"{site.home}/bin/nvcc"] = "sh: 1: cicc: not found"
    assert "does not compile a kernel any more: sh: 1: cicc: not found" in site.found()[0]
