"""The initializers of a graph, from the checkpoint's tensors to bytes in weights.bin."""
