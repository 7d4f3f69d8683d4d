"""Implementations that are odd but correct: every law that they claim must let them pass."""
