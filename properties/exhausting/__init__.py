"""`lockstep exhaust`: every program of a core language up to a size, and not some drawn ones.

language      which programs there are, in the order of size, and how many
judged        one of them on the ranks
portion       a hundred of them, in any process
counting      how far a run is, and what it has found
running       all of them, in several processes, kept in a record
certificate   what a run that found nothing says, as a file
"""
