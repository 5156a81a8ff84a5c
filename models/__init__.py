"""What an architecture is: descriptions, and the blocks that emit them as ONNX graphs."""
