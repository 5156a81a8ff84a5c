"""The tokenizer files of a checkpoint, as a bundle holds them."""
