"""What can go wrong with wheels and indexes elsewhere, as the user is told of it."""

from __future__ import annotations

from urllib.parse import urlsplit

from deepbuild.addresses import without_secrets
from deepbuild.errors import ProbeError, UsageError


def check_hash(url: str, found: str, wanted: str) -> None:
    """
    Raises:
        ProbeError: a hash is wanted, and another one was found.
    """
    if wanted and found != wanted:
        raise ProbeError(
            f"{without_secrets(url)} is not the file that the index names",
            found=f"sha256 {found}",
            wanted=f"sha256 {wanted}",
            hint="try again; if it stays so, make the index again: deepbuild index DIR",
        )


def no_answer(url: str, why: str) -> ProbeError:
    """What is said of an address that gives nothing that can be used."""
    return ProbeError(
        f"{without_secrets(url)} cannot be read",
        found=why,
        wanted="a package index, a page of links to wheels, or a file that one of them names",
        hint="check the address, the network, proxy and `pip config list`",
    )


def untrusted(url: str) -> ProbeError:
    host = urlsplit(url).hostname
    return ProbeError(
        f"{without_secrets(url)} is not to be trusted",
        found="plain HTTP to another machine, on which anyone between may change the answer",
        wanted="https, or a host that pip is told to trust",
        hint=f"pip config set global.trusted-host {host}",
    )


def no_place(location: str, found: str) -> UsageError:
    return UsageError(
        f"{without_secrets(location)} holds no wheels that can be listed",
        found=found,
        wanted="a folder of wheels, or the address (file:, http:, https:) of an index",
        hint="make a folder of wheels an index: deepbuild index DIR",
    )


def no_page(location: str, found: str) -> ProbeError:
    return ProbeError(
        f"{without_secrets(location)} is no package index",
        found=found,
        wanted="an index (its simple/ or what holds it), or a page of links to wheels",
        hint="make one of a folder of wheels: deepbuild index DIR",
    )


def unreadable(url: str, found: str) -> ProbeError:
    return ProbeError(
        f"{without_secrets(url)} cannot be read",
        found=found,
        wanted="a whole wheel, and what its index says lies beside it",
        hint="make the index again: deepbuild index DIR",
    )
