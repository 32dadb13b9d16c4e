"""Files from templates. A template that names an unknown value is an error, not an empty string."""

from __future__ import annotations

import shlex

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(name: str, **values: object) -> str:
    """Fill in a template; the filter `quote` quotes a value for a POSIX shell."""
    loader = PackageLoader("deepbuild.templates", "")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    return environment.get_template(name).render(**values)
