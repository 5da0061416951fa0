"""The devices of a job: which there are, how they are laid out, and how far apart they are."""

from epl.cluster.cluster import Cluster

__all__ = ["Cluster"]
