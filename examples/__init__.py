"""Examples: scripts that use EPL as a user would, from small to real."""
