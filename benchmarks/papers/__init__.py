"""Published figures next to what the simulator predicts; see docs/papers.md."""
