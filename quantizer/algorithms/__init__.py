"""From float weights to codes: one algorithm a file, arrays in and arrays out."""
