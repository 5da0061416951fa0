"""What a user of data parallelism sees besides numbers: fetches, feeds, messages, refusals, endings."""
