"""Quantized Hugging Face checkpoints, one format a file."""
