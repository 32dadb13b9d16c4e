"""What goes into a report, and above all what does not."""

from __future__ import annotations

import io
import json

import pytest
from fake_host import debian
from hypothesis import given
from hypothesis import strategies as st
from test_plan import machine

from deepbuild.errors import UsageError
from deepbuild.explain import explain
from deepbuild.maintainers import Gathered, words_of
from deepbuild.masking import masked

SECRETS = (("/home/jdoe", "/home/user"), ("jdoe", "user"), ("gpu-node-17", "host"))
LEAKS = {
    "hf_AbCdEfGhIjKlMnOpQrStUv": "export HF_TOKEN={}",
    "ghp_0123456789abcdefghijABCDEFGHIJ": "git clone https://{}@github.com/x/y",
    "hunter2": "https://user:{}@index.example.com/simple",
    "s3cr3t-pass": '"password": "{}",',
    "p4ss": "PIP_INDEX_PASSWORD='{}'",
    "AKIAIOSFODNN7EXAMPLE": "aws_access_key_id = {}",
    "wJalrXUtnFEMI/K7MDENG": "aws_secret_access_key={}",
    "0123456789abcdef0123456789abcdef01234567": "wandb_api_key: {}",
    "sk-abcdefghijklmnop1234": "using {} now",
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln": "Authorization: Bearer {}",
    "glpat-abcdefghijklmnopqrst": "{}",
    "jdoe": "/scratch/{}/build and ~{} and {}",
    "/home/jdoe": "cp {}/x .",
    "gpu-node-17": "host {} said",
    "jane.doe@example.com": "mail {} about it",
    "10.20.30.41": "ssh {}",
    "MIIEvQIBADANBg": "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
    "unfinishedkey": "-----BEGIN RSA PRIVATE KEY-----\n{}",
    "another": "/home/{}/envs/ds",
}


@pytest.mark.parametrize("secret", LEAKS)
def test_nothing_secret_is_left(secret):
    text = LEAKS[secret].replace("{}", secret)
    assert secret not in masked(f"before\n{text}\nafter", SECRETS)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA 13.0.88, driver 580.65.06, torch 2.14.1+cu130",
        "gcc version 12.2.0, nvidia-cublas==13.1.0.3",
        '"train_batch_size": 8, "optimizer": {"type": "AdamW"}',
        "csrc/adam/fused_adam_frontend.cpp:12:10: fatal error: cusparse.h: No such file",
        "/usr/local/cuda-13.0/bin/nvcc",
        "127.0.0.1:8000",
    ],
)
def test_what_is_needed_stays(text):
    assert masked(text, SECRETS) == text


@given(st.text(max_size=80))
def test_masking_ends_and_is_done_once(text):
    once = masked(text, SECRETS)
    assert masked(once, SECRETS) == once


def test_report_holds_what_is_asked_for(tmp_path):
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps({"train_batch_size": 8, "wandb": {"api_key": "hunter22"}}))
    log = explain(
        io.BytesIO(b"/home/jdoe/x.cpp:1:10: fatal error: cusparse.h: No such file\n"),
        "build.log",
        lambda: None,
    )
    text = Gathered(debian(), machine(), "no plan: of a test", log, config).text(SECRETS)
    for words in (
        "### Versions",
        "Python 3.11",
        "CUDA 13.0",
        "gcc 12.2.0",
        "no plan: of a test",
        "DB-1001 the CUDA toolkit lacks cusparse.h",
        '"train_batch_size": 8',
    ):
        assert words in text, words
    assert "hunter22" not in text and "jdoe" not in text


def test_config_that_is_not_there_is_told(tmp_path):
    gathered = Gathered(debian(), machine(), "none", None, tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot be read"):
        gathered.text(())


def test_error_stands_for_a_plan_that_cannot_be_made():
    assert words_of(UsageError("no", hint="do")).splitlines() == ["no plan: no", "  to do:  do"]
