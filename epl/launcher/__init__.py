"""`epl-launch` starts the workers of a job on this machine. It needs no TensorFlow, and of EPL only epl/utils."""
