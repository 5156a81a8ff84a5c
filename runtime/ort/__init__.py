"""ONNX Runtime at the border: sessions, bound steps, and the executor over them."""
