"""Ollama's HTTP API: POST /api/chat and /api/generate, and what its clients ask besides."""
