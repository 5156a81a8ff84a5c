"""How fast a bundle runs."""
