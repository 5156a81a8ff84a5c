"""Embedding models and rerankers: pooling, prompts and scores as the checkpoint states them, and their export."""
