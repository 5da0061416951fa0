"""Small helpers that know nothing of plans: TensorFlow's private symbols, errors, the launcher."""
