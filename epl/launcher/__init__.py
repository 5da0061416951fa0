"""`epl-launch` starts the workers of a job, here or by ssh. It needs no TensorFlow, and of EPL only epl/utils."""
