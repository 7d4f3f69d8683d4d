"""Search for an example that breaks a law, and for the smallest one that breaks it in the same way.

search       draws examples, and shrinks those that fail
others       judges a run by the laws for which it was not drawn
seldom       in a run of a given time: draws rare features, and neighbours of refused programs
remembered   tries earlier failures first
witnesses    checks that the events which a law is about took place
least        the smallest part of a program that still fails
greedy       moves to the first simpler value that still fails, until none does
"""
