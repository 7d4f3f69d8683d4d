"""Packages from elsewhere under the same laws, one adapter each. Nothing here computes: it only names and claims."""
