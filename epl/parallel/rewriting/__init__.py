"""What every pass needs: the context of a rewriting, the order of passes, and the checks of their result."""
