"""Which ops a DeepSpeed config asks for."""

from __future__ import annotations

import json

import pytest

from deepbuild.config import needed_ops, ops_of_config
from deepbuild.errors import UsageError

CPU = {"offload_optimizer": {"device": "cpu"}}


@pytest.mark.parametrize(
    ("config", "ops"),
    [
        ({}, []),
        ({"optimizer": {"type": "Adam"}}, ["fused_adam"]),
        ({"optimizer": {"type": "AdamW"}, "zero_optimization": CPU}, ["cpu_adam"]),
        (
            {"optimizer": {"type": "AdamW"}, "zero_optimization": {"cpu_offload": True}},
            ["cpu_adam"],
        ),
        ({"optimizer": {"type": "Adam", "params": {"torch_adam": True}}}, []),
        ({"optimizer": {"type": "adagrad"}}, []),
        ({"optimizer": {"type": "Adagrad"}, "zero_optimization": CPU}, ["cpu_adagrad"]),
        ({"optimizer": {"type": "Lamb"}}, ["fused_lamb"]),
        ({"optimizer": {"type": "Lion"}}, ["fused_lion"]),
        ({"optimizer": {"type": "Lion"}, "zero_optimization": CPU}, ["cpu_lion"]),
        ({"optimizer": {"type": "Muon"}}, ["fused_adam"]),
        ({"optimizer": {"type": "OneBitAdam"}}, []),
        ({"optimizer": {"type": "ZeroOneAdam"}}, []),
        ({"optimizer": {"type": "SGD"}}, []),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, ["async_io"]),
        ({"zero_optimization": {"offload_param": {"device": "cpu"}}}, []),
        (
            {
                "optimizer": {"type": "Adam"},
                "zero_optimization": {"offload_optimizer": {"device": "nvme"}},
            },
            ["cpu_adam", "async_io"],
        ),
        ({"aio": {"block_size": 1}}, ["async_io"]),
        ({"zero_optimization": {"zero_quantized_weights": True}}, ["quantizer"]),
        ({"zero_optimization": {"zero_quantized_gradients": True}}, ["quantizer"]),
        ({"zero_optimization": {"zero_quantized_weights": False}}, []),
        ({"compile": {"deepcompile": True}}, ["dc"]),
        ({"data_efficiency": {"data_routing": {"random_ltd": {"enabled": True}}}}, ["random_ltd"]),
        ({"data_efficiency": {"data_routing": {"random_ltd": {"enabled": False}}}}, []),
        ({"sparse_attention": {"mode": "fixed"}}, ["sparse_attn"]),
    ],
)
def test_ops_of_a_config(config, ops):
    assert list(needed_ops(config)) == ["utils", *ops]


@pytest.mark.parametrize(
    ("name", "meant"), [("AdamWW", "adamw"), ("sgd", "SGD"), ("Adam W", "adam"), ("x", "--ops")]
)
def test_optimizer_that_nobody_has_is_said(name, meant):
    """DeepSpeed would fail at run time, after ops were built that do not serve it."""
    with pytest.raises(UsageError, match="no optimizer that DeepSpeed knows") as caught:
        list(needed_ops({"optimizer": {"type": name}}))
    assert name in caught.value.found and meant in caught.value.hint


def test_ops_are_read_from_a_file_and_named_once(tmp_path):
    config = {"optimizer": {"type": "AdamW"}, "zero_optimization": CPU, "fp16": {"enabled": True}}
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps(config))
    assert ops_of_config(file) == ("utils", "cpu_adam")


@pytest.mark.parametrize(
    "config",
    [
        {"optimizer": "Adam"},
        {"optimizer": {"type": ["Adam"]}},
        {"optimizer": {"type": None, "params": 3}},
        {"zero_optimization": True},
        {"zero_optimization": {"offload_optimizer": {"device": ["cpu"]}}},
        {"zero_optimization": {"offload_optimizer": None, "offload_param": "cpu"}},
        {"compile": [], "data_efficiency": {"data_routing": 1}},
    ],
)
def test_values_of_a_wrong_kind_ask_for_nothing(config):
    assert list(needed_ops(config)) == ["utils"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "Expecting"),
        ("", "Expecting"),
        ("[]", "a JSON list"),
        ('"auto"', "a JSON str"),
        ("\xff\xfe", "codec"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_file_that_is_no_config_is_refused(tmp_path, text, found):
    file = tmp_path / "ds_config.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match="is not a DeepSpeed config") as caught:
        ops_of_config(file)
    assert found in caught.value.found
    assert str(file) in caught.value.message


@pytest.mark.parametrize("name", ["gone.json", "."])
def test_file_that_cannot_be_read_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="is not a DeepSpeed config"):
        ops_of_config(tmp_path / name)
