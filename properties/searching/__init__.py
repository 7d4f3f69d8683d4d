"""Looks for an example that breaks a law, and for the least of those that break it in the same way.

search       draws, and shrinks what fails
others       what a run shows of the laws for which it was not drawn
seldom       in a given time: what was drawn least, and neighbours of what was refused
remembered   what failed before is tried again first
witnesses    whether what the law is about took place at all
least        of a program that still does something
greedy       goes on to the first simpler thing that still does it, until none does
"""
