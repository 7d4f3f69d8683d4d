"""Write every page that is made from the code: `python -m lockstep.properties.pages`, in a clone."""

import argparse

from lockstep.properties.pages import claims, findings, laws


def main() -> None:
    """Write the pages."""
    argparse.ArgumentParser(prog="python -m lockstep.properties.pages", description=__doc__).parse_args()
    for path, text in {**laws.as_written(), **claims.as_written(), **findings.as_written()}.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
