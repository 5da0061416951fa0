"""The loss of the rows of all replicas (`replicate.batch: all`)."""
