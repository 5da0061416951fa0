"""The plan: what the rewriting of a graph will do, decided before the graph changes, and agreed on by all processes."""
