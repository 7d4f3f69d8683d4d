"""Templates, filled in: every value is escaped, and what is missing is an error. A page holds all that it shows."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("lockstep.pictures"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def filled(template: str, **values: Any) -> str:
    """The text of a template with these values."""
    text: str = _templates().get_template(template).render(**values)
    return text
