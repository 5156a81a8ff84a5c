"""A folder for onnxruntime-genai over the weights of a bundle."""
