"""What is told of a plan: a simulated step as text, JSON, a trace and one HTML page."""
