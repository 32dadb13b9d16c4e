"""How stages tell the user what is going on."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Telling(msgspec.Struct, frozen=True):
    """Lines that stay, and a status line that is rewritten."""

    note: Callable[[str], None]
    status: Callable[[str], None]
