"""Weights packed once for this processor, and mapped by every process."""
