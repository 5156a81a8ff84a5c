"""Read checkpoints, write bundles."""
