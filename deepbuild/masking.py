"""What must not leave a machine in a report: who and where one is, and what opens doors."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MASK = "***"
# Tokens by their forms: Hugging Face, GitHub, GitLab, PyPI, OpenAI and others, AWS, Slack, JWT.
_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|pypi-[\w-]{16,}|sk-[\w-]{16,}|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
# A name that says that what follows is secret: in JSON, TOML, shells, headers and addresses.
_NAMED = re.compile(
    r"(?i)(?P<before>[\"']?[\w.-]*(?:token|passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credential|auth(?:orization)?|wandb_key|cookie)s?[\"']?\s*(?:[:=]|\bis\b)\s*"
    r"(?:bearer |basic |token )?[\"']?)(?P<secret>[^\s\"',;&}\])]+)"
)
_IN_ADDRESS = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/\s@]+@")
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_HOMES = re.compile(
    r"(?P<above>/(?:home|Users|export/home|u|users|scratch|work|data)/)(?P<name>[\w.-]+)"
)
_KEYS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
)
_NUMBERS = re.compile(r"\b(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}\b(?!\.\d)")
_VERSION_BEFORE = re.compile(r"(?i)(?:version|==|release|driver|[a-z]-)\s*$")


def masked(text: str, secrets: Iterable[tuple[str, str]]) -> str:
    """A text without homes, user and host names, addresses of machines, mail addresses, tokens,
    keys and passwords.

    Args:
        secrets: words of this machine, each with what is put in its place.

    >>> masked("/home/ann/x, HF_TOKEN=hf_abc, https://u:p@host/x", [])
    '/home/user/x, HF_TOKEN=***, https://***@host/x'
    """
    text = _KEYS.sub(_MASK, text)
    text = _IN_ADDRESS.sub(rf"\g<scheme>{_MASK}@", text)
    for secret, mask in secrets:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", mask, text)
    text = _NAMED.sub(rf"\g<before>{_MASK}", text)
    text = _TOKENS.sub(_MASK, text)
    text = _HOMES.sub(r"\g<above>user", text)
    text = _MAIL.sub("user@host", text)
    return _NUMBERS.sub(lambda match: _address(text, match), text)


def _address(text: str, match: re.Match[str]) -> str:
    """Versions of four numbers are no addresses of machines."""
    numbers = [int(part) for part in match[0].split(".")]
    before = text[max(0, match.start() - 12) : match.start()]
    if max(numbers) > 255 or _VERSION_BEFORE.search(before):
        return match[0]
    return "0.0.0.0"
