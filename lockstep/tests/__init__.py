"""Tests of what a user meets first: the command, the function, the laws in a test suite of their own."""
