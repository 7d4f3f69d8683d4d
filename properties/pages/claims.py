"""The page of the claims: the promise of each, its possible values, and its default."""

from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from lockstep.home import HOME
from lockstep.properties.claim import Claim, told
from lockstep.properties.claims import Claims

PAGE = Path(HOME) / "docs" / "claims.md"
HEAD = """# Claims

A *claim* is a promise of your class. Lockstep draws only programs that your class claims to handle, and holds only the
laws that follow from its claims. A class declares claims in an attribute:

```python
class MyDDP(nn.Module):
    claims = {"unused": "untouched", "sixteen_bits": True}
```

A claim that you leave out has its default. There are two exceptions:

- *seen*: Lockstep reads the value from the methods and arguments of your class. The first lines of a run say what was
  seen.
- *probed*: if your class declares no claims, Lockstep also tries the other values, on 20 programs each, and prints the
  result. A probe never fails a run.

`lockstep claims NAME` explains one claim and lists the laws that depend on it. The table is made from the code by
`python -m lockstep.properties.pages`.

| claim | promise | values | default | |
| --- | --- | --- | --- | --- |
"""


def as_written() -> dict[Path, str]:
    """The text of the page by its path."""
    return {PAGE: HEAD + "".join(_row(each, told(each)) for each in fields(Claims))}


def _row(of: "Field[Any]", declared: Claim) -> str:
    """A claim's row of the table."""
    found = [word for word, there in (("seen", declared.inferred), ("probed", declared.probed)) if there]
    values = ", ".join(_values(of, declared))
    return f"| `{of.name}` | {declared.says} | {values} | `{of.default!r}` | {', '.join(found)} |\n"


def _values(of: "Field[Any]", declared: Claim) -> Iterator[str]:
    """The values that a claim can have, as code or in words."""
    if declared.some:
        yield "a tuple of these" if declared.choices else "a tuple of classes"
    elif not declared.choices:
        yield "a whole number"
    yield from (f"`{value!r}`" for value in declared.choices)
