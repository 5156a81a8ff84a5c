"""The weights of a graph found, and their operators rewritten."""
