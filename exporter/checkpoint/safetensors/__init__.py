"""A Hugging Face folder and its .safetensors files."""
