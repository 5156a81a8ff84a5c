"""This machine: memory, cores, packages, and what fits on it."""
