"""One file a model family: what its config.json means, and where its weights are."""
