"""Where keys, values and recurrent states live, and who may use how much."""
