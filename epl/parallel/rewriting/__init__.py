"""What every pass needs: the context of a rewrite, the order of passes, and the checks of their result."""
