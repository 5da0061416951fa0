"""What each op of a model takes, measured by itself on a device of this machine, and kept in a file."""
