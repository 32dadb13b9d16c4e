"""Failures are told in four parts, and each has its documented exit code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import deepbuild
from deepbuild import errors, facts
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


# --- every error has a page


PACKAGE = Path(deepbuild.__file__).parent
RAISED = {
    *("UsageError", "ProbeError", "BuildError", "InstallError", "VerificationError"),
    *("PlanBlocked", "DeadlineError", "DeepbuildError", "Blocker"),
}


def first_words() -> Iterator[tuple[str, str]]:
    """The message of every error and the code of every blocker that the source makes, with X for
    what is filled in."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "id", "")
                message = node.args[0]
                if name in RAISED and isinstance(message, ast.Constant):
                    yield f"{path.name}:{node.lineno}", str(message.value)
                elif name in RAISED and isinstance(message, ast.JoinedStr):
                    parts = (getattr(part, "value", "X") for part in message.values)
                    words = (part if isinstance(part, str) else "X" for part in parts)
                    yield f"{path.name}:{node.lineno}", "".join(words)


def test_every_error_has_one_code_and_a_page():
    found = list(first_words())
    assert len(found) > 100
    for place, message in found:
        rows = [r.code for r in facts.own_rows() for each in r.match if re.match(each, message)]
        assert len(rows) == 1, (place, message, rows)
        assert facts.code_of(message) == rows[0]
