"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deepbuild import cli


@pytest.fixture
def run(capfd) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in this process: code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call
