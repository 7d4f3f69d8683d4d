"""The rules of CONTRIBUTING, "How we write", as far as a machine can see them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("benchmarks", "impls", "lockstep", "oracle", "properties", "worlds")
# A docstring says what a thing is or does; it does not begin with one of these.
OPENINGS = re.compile(r"(Whether|What|Whatever|Who|Whoever|Whose|Which|Where|How|When|Why|Those|That|Such)\b")
LONGEST = 35  # words of a sentence
# Words of our own, or of another century, for which the field has its own.
NOT_OURS = {
    r"\bwhoever\b": "name the subject",
    r"\bsuch as (are|have|is)\b": "name the subject",
    r"\bthe very bits\b": "the same bits",
    r"\bgoes? backward\b": "runs backward",
    r"\bto the rank\b": "for each rank",
}
# Not the first things that a user reads.
RECORDS = {
    "docs/campaigns.md": "a diary of long runs",
    "docs/what-runs.md": "a table, with what each program needs",
}


def python_files() -> list[Path]:
    """Every module but tests, whose docstrings nobody reads to use Lockstep."""
    found = (path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return [ROOT / path for path in found if "tests" not in path.parts]


def user_texts() -> list[Path]:
    """The pages that a user reads, those made from the code among them."""
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
    return [page for page in sorted(pages) if str(page.relative_to(ROOT)) not in RECORDS]


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page in Markdown: those of paragraphs, items of lists and cells of tables, without code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )", text):
        if block.startswith(("    ", "#")):
            continue
        rows = block.splitlines() if block.lstrip().startswith("|") else [" ".join(block.split())]
        for cell in (cell for row in rows for cell in row.strip("| ").split(" | ")):
            plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", cell))
            yield from re.split(r"(?<=[.!?:;])\s+", plain)


def test_docstrings_begin_with_what_the_thing_is_or_does() -> None:
    wrong = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                told = ast.get_docstring(node) or ""
                if OPENINGS.match(told):
                    wrong.append(f"{path.relative_to(ROOT)}: {told.splitlines()[0]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", user_texts(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_short_sentences_in_the_words_of_the_field(page: Path) -> None:
    told = [*sentences(page.read_text())]
    long = [sentence for sentence in told if len(re.findall(r"[\w'./-]+", sentence)) > LONGEST]
    assert not long, "\n".join(long)
    for pattern, instead in NOT_OURS.items():
        wrong = [sentence for sentence in told if re.search(pattern, sentence.replace("*whoever*", ""))]
        assert not wrong, f"{instead}: {wrong[0]}"


def test_exceptions_are_still_there() -> None:
    assert all((ROOT / name).is_file() for name in RECORDS)
