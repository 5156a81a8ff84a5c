"""Attention over keys and values: grouped queries, latents."""
