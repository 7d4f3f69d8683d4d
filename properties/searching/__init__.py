"""Looks for an example that breaks a law, and for the least of those that break it in the same way.

search       draws, and shrinks what fails
remembered   what failed before is tried again first
witnesses    whether what the law is about took place at all
least        of a program that still does something
"""
