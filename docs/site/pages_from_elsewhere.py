"""A hook of MkDocs: pages of the site whose files have their place elsewhere in the repository."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add these pages to the files that the site is built from."""
    for name, source in PAGES.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files
