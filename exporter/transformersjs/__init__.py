"""A folder for transformers.js, made from a bundle."""
