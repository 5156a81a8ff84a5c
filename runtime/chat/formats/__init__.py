"""Tool calls in a model's own words: how each family writes them."""
