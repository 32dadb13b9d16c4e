"""Every failure that a user can meet: what was found, what was wanted, what to do."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The documented exit codes; scripts rely on them."""

    DONE = 0
    UNKNOWN = 1
    USAGE = 2
    PROBE = 3
    BLOCKED = 4
    BUILD = 5
    INSTALL = 6
    VERIFICATION = 7
    INTERNAL = 70
    DEADLINE = 75
    INTERRUPTED = 130


class DeepbuildError(Exception):
    """A failure told to the user in four parts; it never shows a traceback.

    >>> print(DeepbuildError("no torch", found="none", wanted="torch", hint="pip install torch"))
    no torch
      found:  none
      wanted: torch
      to do:  pip install torch
    """

    exit_code: Exit = Exit.USAGE

    def __init__(self, message: str, *, found: str = "", wanted: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message, self.found, self.wanted, self.hint = message, found, wanted, hint

    def __str__(self) -> str:
        parts = (("found: ", self.found), ("wanted:", self.wanted), ("to do: ", self.hint))
        return "\n".join([self.message, *(_part(name, text) for name, text in parts if text)])


def _part(name: str, text: str) -> str:
    indent = "\n" + " " * (len(name) + 3)
    return f"  {name} {text.strip().replace(chr(10), indent)}"


class UsageError(DeepbuildError):
    """The request itself cannot be meant: an unknown op, a malformed arch, a foreign file."""

    exit_code = Exit.USAGE


class ProbeError(DeepbuildError):
    """The machine could not be looked at: no interpreter, no source, no index."""

    exit_code = Exit.PROBE


class PlanBlocked(DeepbuildError):
    """A build was asked for, but its plan has blockers."""

    exit_code = Exit.BLOCKED


class BuildError(DeepbuildError):
    """A build started and failed, or a requested op is missing from its result."""

    exit_code = Exit.BUILD


class DeadlineError(DeepbuildError):
    """The time that was given to a build is over; run again, it goes on."""

    exit_code = Exit.DEADLINE


class InstallError(DeepbuildError):
    """An installation failed; what was there before is back."""

    exit_code = Exit.INSTALL


class VerificationError(DeepbuildError):
    """Something was built or installed, and is not what was promised."""

    exit_code = Exit.VERIFICATION
