"""What lives while training: hooks into TensorFlow, what a Session.run means under a plan, feeds, checkpoints."""
