"""The folder of Lockstep itself: installed, or in a clone."""

from pathlib import Path

PACKAGE = Path(__file__).parent
HOME = str(PACKAGE.parent)  # what the path of imports has to name
# In a clone the folders of the package lie beside it, and `PACKAGE` has links to them.
IS_CLONE = (PACKAGE.parent / "oracle" / "__init__.py").is_file()
