"""What compiling takes: remembered, scaled to this machine, and told before a build."""

from __future__ import annotations

import json

import pytest
from toys import planned_op, toy_plan

from deepbuild import facts
from deepbuild.costs import Cost, Costs, File, forecast
from deepbuild.model import replace

MIB = 2**20
KERNEL = File("csrc/new/kernel.cu", "nvcc", ("sm_80", "sm_90"), "/cuda/bin/nvcc")
PLAIN = File("csrc/new/plain.cpp", "g++", (), "/usr/bin/g++")


def test_measured_costs_are_kept_with_a_margin_of_memory(tmp_path):
    Costs(tmp_path / "costs.json").learn([(KERNEL, Cost(50.0, 1000 * MIB))])
    found = Costs(tmp_path / "costs.json").of(KERNEL)
    assert (found.seconds, found.peak) == (50.0, 1150 * MIB)


def test_other_arches_and_other_compilers_are_other_costs(tmp_path):
    costs = Costs(tmp_path / "costs.json")
    costs.learn([(KERNEL, Cost(500.0, 1000 * MIB))])
    costs = Costs(tmp_path / "costs.json")
    for other in (replace(KERNEL, codes=("sm_80",)), replace(KERNEL, program="/other/nvcc")):
        assert costs.of(other).seconds < 500


def test_later_measures_replace_earlier_ones(tmp_path):
    for seconds in (50.0, 20.0):
        Costs(tmp_path / "costs.json").learn([(PLAIN, Cost(seconds, 1000 * MIB))])
    assert Costs(tmp_path / "costs.json").of(PLAIN).seconds == 20.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": {"seconds": "x"}}', "[" * 5000])
def test_damaged_store_counts_as_empty_and_is_replaced(tmp_path, text):
    store = tmp_path / "costs.json"
    store.write_text(text)
    costs = Costs(store)
    assert costs.of(PLAIN).seconds > 0
    costs.learn([(PLAIN, Cost(7.0, 1000 * MIB))])
    assert Costs(store).of(PLAIN).seconds == 7.0


def test_store_that_cannot_be_written_is_harmless(tmp_path):
    (tmp_path / "file").write_text("")
    Costs(tmp_path / "file" / "costs.json").learn([(PLAIN, Cost(7.0, 1000 * MIB))])


def test_store_does_not_grow_for_ever(tmp_path):
    store = tmp_path / "costs.json"
    many = [(replace(PLAIN, source=f"{n}.cpp"), Cost(1.0, 1000 * MIB)) for n in range(6000)]
    Costs(store).learn(many)
    kept = json.loads(store.read_text())
    assert len(kept) == 5000
    assert "5999.cpp|g++||/usr/bin/g++" in kept


def test_table_is_scaled_by_how_fast_this_machine_is(tmp_path):
    known, other = facts.compile_cost_rows()[:2]
    codes = ("sm_86",) if known.role == "nvcc" else ()
    twice = Cost(known.seconds * 2, 1000 * MIB)
    Costs(tmp_path / "c").learn([(File(known.source_file, known.role, codes, "x"), twice)])
    guessed = Costs(tmp_path / "c").guess(other.source_file, other.role, 1)
    assert guessed == pytest.approx(other.seconds * 2, rel=0.01)


def test_rows_of_the_table_are_sane():
    rows = facts.compile_cost_rows()
    assert len({(row.source_file, row.role) for row in rows}) == len(rows) > 50
    for row in rows:
        assert 0.1 < row.seconds < 2000 and 50 < row.peak_mib < 8000 and 0 < row.kib < 50_000


def test_more_arches_take_longer_and_are_larger():
    one, two = (facts.compile_cost("csrc/new/k.cu", "nvcc", arches) for arches in (1, 2))
    assert one.seconds < two.seconds < 2 * one.seconds
    assert one.kib < two.kib < 2 * one.kib
    assert facts.compile_cost("a.cpp", "g++", 1) == facts.compile_cost("a.cpp", "g++", 5)


def test_forecast_counts_each_file_once_and_no_faster_than_the_longest(tmp_path):
    ops = (
        replace(planned_op("a"), sources=("csrc/x.cpp", "csrc/k.cu"), arches=("8.0",)),
        replace(planned_op("b"), sources=("csrc/x.cpp",)),
        replace(planned_op("c", verdict="skip"), sources=("csrc/y.cpp",)),
    )
    plan = replace(toy_plan(tmp_path, "a"), ops=ops, jobs=1)
    costs = Costs(tmp_path / "none")
    x, k = costs.guess("csrc/x.cpp", "g++", 0), costs.guess("csrc/k.cu", "nvcc", 1)
    alone = forecast(plan, costs)
    assert alone.seconds == pytest.approx(x + k, abs=30)
    assert set(alone.sizes) == {"a", "b"}
    assert alone.sizes["a"] > alone.sizes["b"] > 0
    crowd = forecast(replace(plan, jobs=64), costs)
    assert max(x, k) <= crowd.seconds < alone.seconds
    assert "another machine" in alone.words()


def test_forecast_says_that_it_was_measured_here(tmp_path):
    Costs(tmp_path / "c").learn([(PLAIN, Cost(7.0, 1000 * MIB))])
    words = forecast(toy_plan(tmp_path, "a"), Costs(tmp_path / "c")).words()
    assert "earlier builds here" in words
