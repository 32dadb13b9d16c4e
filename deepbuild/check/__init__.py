"""check(wheel) -> Verification: every claim of a wheel, read back out of it. "passed" is proved,
"failed" is refuted, "skipped" cannot be proved here, and says why; nothing passes silently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deepbuild.check.archive import archive_checks
from deepbuild.check.claims import claim_checks
from deepbuild.check.inside import Inside, look_inside
from deepbuild.check.libraries import library_checks
from deepbuild.check.symbols import Environment, symbol_checks
from deepbuild.errors import VerificationError
from deepbuild.model import Check, Verification

__all__ = ["Environment", "check_wheel", "refuted", "require_true", "untrue"]


def check_wheel(path: Path, environment: Environment | None) -> Verification:
    """All that can be told of a wheel without running what is in it.

    Args:
        environment: the torch that its ops are to work with, where there is one.

    Raises:
        UsageError: not a whole wheel of DeepSpeed.
    """
    inside = look_inside(path)
    checks = tuple(_checks(inside, environment))
    python = environment.python if environment else ""
    return Verification(python, path.name, checks)


def require_true(verification: Verification) -> None:
    """Of a wheel that was just built.

    Raises:
        VerificationError: a claim was refuted.
    """
    wrong = refuted(verification)
    if wrong:
        raise VerificationError(
            f"{verification.wheel} is not what it says",
            found="\n".join(f"{check.name}: {check.evidence}" for check in wrong),
            wanted="a wheel whose every claim can be read back out of it",
            hint="this is a defect of deepbuild or of that DeepSpeed release: please report it",
        )


def refuted(verification: Verification) -> list[Check]:
    return [check for check in verification.checks if check.status == "failed"]


def untrue(verification: Verification) -> list[Check]:
    """What must keep a wheel from being installed: any claim of deepbuild's that is refuted. One of
    elsewhere promises less: whole files, and DeepSpeed's own; loading proves its ops."""
    wrong = refuted(verification)
    told = {check.name: check.status for check in verification.checks}
    return [c for c in wrong if c.name in {"RECORD", "places"} or told["manifest"] != "skipped"]


def _checks(inside: Inside, environment: Environment | None) -> Iterator[Check]:
    yield from archive_checks(inside)
    yield from claim_checks(inside)
    for op in inside.ops:
        yield from library_checks(op, inside)
        yield from symbol_checks(op, inside, environment)
