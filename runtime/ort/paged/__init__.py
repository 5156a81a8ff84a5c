"""Steps of paged.onnx: keys and values in blocks."""
