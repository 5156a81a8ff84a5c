"""This machine: memory, cores, packages, units."""
