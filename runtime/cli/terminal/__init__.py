"""How commands speak: progress, text as it comes, Ctrl-C."""
