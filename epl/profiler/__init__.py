"""What a step did: memory, floating point operations, and a timeline, read from a traced `Session.run`."""
