"""The plan for the rewriting of a graph: made before the graph changes, and compared between all processes."""
