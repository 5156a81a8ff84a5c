"""Run language models on ONNX Runtime with continuous batching."""
