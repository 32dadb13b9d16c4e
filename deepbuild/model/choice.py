"""Which of several wheels, and why not the others."""

from __future__ import annotations

import msgspec


class Refused(msgspec.Struct, frozen=True):
    """A wheel that does not fit, and all that stands against it."""

    wheel: str
    reasons: tuple[str, ...]


class Choice(msgspec.Struct, frozen=True):
    """The wheel of a place that was chosen for a machine, by its file name; "" if none fits.
    `others` fit as well, or could not be better and so were not looked into."""

    place: str
    chosen: str
    why: str
    refused: tuple[Refused, ...] = ()
    others: tuple[str, ...] = ()
