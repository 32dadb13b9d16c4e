"""How stages tell the user what is going on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Telling:
    """Lines that stay, and a status line that is rewritten."""

    note: Callable[[str], None]
    status: Callable[[str], None]
