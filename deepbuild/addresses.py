"""Addresses that may be shown and kept."""

from __future__ import annotations

import re


def without_secrets(url: str) -> str:
    """An address without the token or password in it, for messages and for what is kept.

    >>> without_secrets("https://token@host/DeepSpeed"), without_secrets("ssh://git@host/x")
    ('https://host/DeepSpeed', 'ssh://git@host/x')
    """
    return re.sub(r"^(https?://)[^/@]*@", r"\1", url)
