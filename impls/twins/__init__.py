"""Odd but correct implementations: what a law must let pass, because the contract does not forbid it."""
