"""Nouns survive JSON, and a foreign file is told from a broken one."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import toy_plan

from deepbuild import codec
from deepbuild.errors import UsageError
from deepbuild.model import (
    Blocker,
    BuildPlan,
    BuiltOp,
    Check,
    Decision,
    EnvVar,
    Machine,
    NodeRecord,
    Rejected,
    Verification,
    Wheel,
    replace,
)

WHEEL = Wheel("/w/a.whl", "00", 7, "id", "cuda", (BuiltOp("utils", "u.so", 3, ("8.0",)),))
VERIFICATION = Verification("/py", "a.whl", (Check("utils loads", "passed", "here"),))


def strategy(kind: type) -> st.SearchStrategy:
    """Any value of a noun; numbers and texts are kept short."""
    names = [field.name for field in msgspec.structs.fields(kind)]
    return st.builds(kind, **{name: _of(kind, name) for name in names})


def _of(kind: type, name: str) -> st.SearchStrategy:
    import typing

    return _hint(typing.get_type_hints(kind)[name])


def _hint(hint: object) -> st.SearchStrategy:
    import types
    import typing

    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(_hint(args[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(_hint(args[0]), _hint(args[1]), max_size=2)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([_hint(arg) for arg in args])
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return strategy(hint)
    simple = {
        str: st.text(max_size=5),
        int: st.integers(0, 2**53),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return simple[hint]


def with_schema(kind: type):
    return strategy(kind).map(lambda noun: replace(noun, schema=codec.SCHEMAS[kind]))


@pytest.mark.parametrize("kind", [Machine, BuildPlan, NodeRecord])
def test_every_noun_comes_back_as_it_was(kind):
    @settings(max_examples=25, deadline=None, database=None)
    @given(with_schema(kind))
    def comes_back(noun):
        assert codec.load(codec.dump(noun), kind, "here") == noun

    comes_back()


@pytest.mark.parametrize("noun", [WHEEL, VERIFICATION])
def test_results_come_back_as_they_were(noun):
    text = codec.dump(noun)
    assert text.endswith("}\n")
    assert codec.load(text.encode(), type(noun), "here") == noun


def test_plan_file_comes_back_with_the_same_id(tmp_path):
    plan = toy_plan(tmp_path, "good")
    plan = replace(
        plan,
        blockers=(Blocker("NO_NVCC", "none", "one", "apt install"),),
        decisions=(Decision("cpu", "v3", "default", "x", (Rejected("native", "elsewhere"),)),),
    )
    file = tmp_path / "plan.json"
    file.write_text(codec.dump(plan))
    again = codec.load_file(file, BuildPlan)
    assert again == plan
    assert codec.plan_id(again) == codec.plan_id(plan)


def test_id_covers_all_but_itself(tmp_path):
    plan = toy_plan(tmp_path, "good")
    assert codec.plan_id(plan) == codec.plan_id(replace(plan, id="other")) == plan.id
    changes = {"jobs": 2, "cpu": "native", "allow_missing": ("good",), "warnings": ("w",)}
    changes["env"] = plan.env | {"CC": EnvVar("gcc", "other")}
    ids = {codec.plan_id(replace(plan, **{name: value})) for name, value in changes.items()}
    assert len(ids | {plan.id}) == len(changes) + 1


def test_id_does_not_depend_on_the_order_of_names(tmp_path):
    plan = toy_plan(tmp_path, "good")
    turned = replace(plan, env=dict(reversed(plan.env.items())))
    assert codec.plan_id(turned) == plan.id


@pytest.mark.parametrize("part", [0, 1, 0.5, 0.99])
def test_truncated_file_is_said_to_be_none(tmp_path, part):
    text = codec.dump(WHEEL)
    cut = text[: int(part) if part in (0, 1) else int(len(text.rstrip()) * part)]
    with pytest.raises(UsageError, match="here is not a wheel"):
        codec.load(cut, Wheel, "here")


@pytest.mark.parametrize(
    "data",
    [
        b"not JSON",
        b"[]",
        b"null",
        b"{}",
        b'"text"',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"schema": "1"}',
        b'{"schema": null}',
        b'{"schema": 1e400}',
        b'{"schema": %d}',
        b'{"schema": %d, "path": "\xff"}',
    ],
)
def test_what_is_no_noun_is_refused_for_each_noun(data):
    for kind, schema in codec.SCHEMAS.items():
        with pytest.raises(UsageError, match="here is not a"):
            codec.load(data.replace(b"%d", b"%d" % schema), kind, "here")


@pytest.mark.parametrize(
    ("schema", "hint"), [(99, "pip install -U"), (10**30, "pip install -U"), (0, "again")]
)
def test_other_schema_says_which_side_is_old(schema, hint):
    data = json.loads(codec.dump(WHEEL)) | {"schema": schema}
    with pytest.raises(UsageError, match="another schema") as caught:
        codec.load(json.dumps(data), Wheel, "here")
    assert hint in caught.value.hint
    assert f"schema {schema}" in caught.value.found


def test_newer_schema_is_told_before_fields_that_are_unknown_here():
    with pytest.raises(UsageError, match="another schema"):
        codec.load('{"schema": 99, "path": {"new": "shape"}}', Wheel, "here")


def test_field_of_a_wrong_type_is_named():
    data = json.loads(codec.dump(WHEEL))
    data["ops"][0]["size"] = "three"
    with pytest.raises(UsageError) as caught:
        codec.load(json.dumps(data), Wheel, "here")
    assert "$.ops[0].size" in caught.value.found
    assert "int" in caught.value.found


def test_field_that_is_missing_is_named():
    data = json.loads(codec.dump(WHEEL))
    del data["sha256"]
    with pytest.raises(UsageError) as caught:
        codec.load(json.dumps(data), Wheel, "here")
    assert "sha256" in caught.value.found


def test_another_noun_is_not_taken_for_this_one():
    with pytest.raises(UsageError, match="is not a plan"):
        codec.load(codec.dump(WHEEL).replace('"schema": 1', '"schema": 2'), BuildPlan, "here")


@pytest.mark.parametrize("name", ["gone.json", ".", "x" * 300])
def test_file_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(UsageError, match="cannot read") as caught:
        codec.load_file(tmp_path / name, Machine)
    assert caught.value.wanted == "a machine saved by deepbuild as JSON"


def test_part_that_is_none_is_a_value_error():
    assert codec.decode("[1, 2]", tuple[int, ...]) == (1, 2)
    with pytest.raises(ValueError, match="Expected"):
        codec.decode('["a"]', tuple[int, ...])
