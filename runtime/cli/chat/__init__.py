"""`onnxlm chat`: the command, what can be typed, the history, markdown."""
