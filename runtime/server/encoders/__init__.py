"""Embeddings, rerankers and classifiers over HTTP, in the shapes of OpenAI, Jina, Cohere, vLLM and Ollama."""
