"""What each execution provider can run."""
