"""Failures are told in four parts, and each has its documented exit code."""

from __future__ import annotations

import pytest

from deepbuild import errors
from deepbuild.errors import DeepbuildError, Exit


def test_four_parts_stand_below_each_other():
    error = DeepbuildError("no torch", found="none", wanted="torch", hint="pip install torch")
    assert str(error).splitlines() == [
        "no torch",
        "  found:  none",
        "  wanted: torch",
        "  to do:  pip install torch",
    ]


def test_parts_that_are_empty_are_left_out():
    assert str(DeepbuildError("no torch")) == "no torch"
    assert str(DeepbuildError("no torch", hint="x")) == "no torch\n  to do:  x"


def test_further_lines_of_a_part_are_indented_under_its_first():
    error = DeepbuildError("blocked", found="one\ntwo\n", hint="a\nb")
    assert str(error).splitlines() == [
        "blocked",
        "  found:  one",
        "          two",
        "  to do:  a",
        "          b",
    ]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("UsageError", 2),
        ("ProbeError", 3),
        ("PlanBlocked", 4),
        ("BuildError", 5),
        ("InstallError", 6),
        ("VerificationError", 7),
    ],
)
def test_exit_codes_are_the_documented_ones(kind, code):
    error = getattr(errors, kind)("text", found="f", wanted="w", hint="h")
    assert isinstance(error, DeepbuildError)
    assert error.exit_code == code
    assert (error.message, error.found, error.wanted, error.hint) == ("text", "f", "w", "h")


def test_exit_codes_are_told_apart():
    assert {Exit.DONE: 0, Exit.INTERNAL: 70, Exit.INTERRUPTED: 130}.items() <= {
        code: int(code) for code in Exit
    }.items()
    assert len({int(code) for code in Exit}) == len(Exit)
