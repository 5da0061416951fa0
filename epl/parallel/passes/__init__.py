"""One rewrite of the graph per module; epl.parallel.transformation puts them in order."""
