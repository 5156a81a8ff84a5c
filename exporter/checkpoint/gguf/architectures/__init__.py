"""What each GGUF architecture is in Hugging Face's terms."""
