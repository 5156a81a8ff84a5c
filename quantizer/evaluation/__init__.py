"""What quantization costs, measured and reported."""
