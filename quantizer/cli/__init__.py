"""The commands `quantize`, `quantize-kv`, `eval` and `compare`."""
