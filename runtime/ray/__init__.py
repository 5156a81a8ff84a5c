"""The server and offline batches on a Ray cluster. Needs the extra `ray`."""
