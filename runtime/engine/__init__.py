"""Continuous batching: requests in, one step after the other, output deltas out."""
