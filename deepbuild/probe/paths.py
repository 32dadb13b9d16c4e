"""Paths as the user wrote them."""

from __future__ import annotations

from deepbuild.host import Host


def absolute(host: Host, path: str) -> str:
    """A path that holds in any folder, since programs are started in "/". Its last part is kept:
    the python of an environment is a link, and what it leads to is another one."""
    if path.startswith("/"):
        return path
    folder, _, name = path.rstrip("/").rpartition("/")
    return f"{host.real_path(folder or '.').rstrip('/')}/{name}"
