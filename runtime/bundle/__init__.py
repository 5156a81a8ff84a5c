"""A bundle on disk: its manifest, its graphs, its files."""
