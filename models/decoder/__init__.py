"""What a decoder can be: the parts that a family's description names."""
