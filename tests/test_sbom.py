"""A wheel's bill of materials: what is told, that it is valid, and where the library is missing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from test_check import HOME, MANIFEST, Maker, compiled, maker  # noqa: F401 (fixtures)

from deepbuild.errors import UsageError
from deepbuild.sbom import write_sbom
from deepbuild.wheel.contents import sha256_of


@pytest.fixture
def bom(maker: Maker) -> dict:  # noqa: F811
    wheel = maker.true()
    path = write_sbom(wheel)
    assert path == wheel.with_name(f"{wheel.name}.cdx.json")
    found = json.loads(path.read_text())
    subject = found["metadata"]["component"]
    assert subject["hashes"] == [{"alg": "SHA-256", "content": sha256_of(wheel)}]
    return found


def test_it_is_what_the_format_says(bom):
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom)) is None


def test_it_names_what_the_wheel_was_made_of_and_needs(bom):
    found = {each["name"]: each for each in bom["components"]}
    assert found["gcc"]["version"] == "12.2.0"
    assert found["DeepSpeed source"]["properties"][0]["value"] == "tree:0"
    library = {
        each["name"]: each["value"] for each in found["deepspeed/ops/fused_op.so"]["properties"]
    }
    assert library["deepbuild:sass"] == "8.0"
    assert found["torch"]["properties"][0]["value"] == "torch==2.14.*"


def test_same_wheel_has_the_same_serial_number(maker: Maker, bom):  # noqa: F811
    again = json.loads(write_sbom(maker.true()).read_text())
    assert again["serialNumber"] == bom["serialNumber"]


def test_wheel_without_manifest_has_none(maker: Maker):  # noqa: F811
    path = maker.changed(lambda files: files.pop(f"{HOME}/{MANIFEST}"))
    with pytest.raises(UsageError, match="nothing is known"):
        write_sbom(path)


def test_missing_library_is_told_before_anything_is_built():
    code = "import sys; sys.modules['cyclonedx'] = None\nimport deepbuild.sbom"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "--sbom needs cyclonedx-python-lib" in done.stderr
    assert "pip install 'deepbuild[sbom]'" in done.stderr
