"""IO slicing: each worker reads its share of the input files."""
