"""Implementations with one known fault each, a few lines over a correct one; each is killed by the law it breaks."""
