"""Whole texts to vectors and scores: read, batched by length, and run through one graph, without a cache."""
