"""The parts of a decoder, as onnxscript modules that emit operators."""
