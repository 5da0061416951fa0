"""User scripts of the oracle: ordinary TensorFlow 1.x programs, written as for one device."""
