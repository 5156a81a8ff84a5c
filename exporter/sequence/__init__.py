"""Embedding models and rerankers: what a checkpoint says of pooling, prompts and scores, and the export of it."""
