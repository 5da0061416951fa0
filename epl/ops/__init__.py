"""Python side of the native ops: jobs, communicators, collectives with their gradients, and fusion."""
