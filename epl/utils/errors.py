"""The exceptions that EPL raises where the user can act on them.

Each class also derives from the builtin exception that scripts written for EPL catch (`ValueError`, `RuntimeError`,
`AttributeError`), so that an existing `except` clause keeps working. The text of a message belongs to the code that
raises it: what was seen, where, what was expected, what to do. This module imports nothing.
"""


class EplError(Exception):
    """Base of every exception of EPL."""


class TensorFlowNeededError(EplError, ImportError):
    """TensorFlow is missing, cannot be imported, or is one that EPL does not know."""


class GraphModeError(EplError, RuntimeError):
    """TensorFlow 2 behaves as TensorFlow 2: it executes eagerly, or builds graphs that EPL does not know."""


class ConfigError(EplError, ValueError):
    """A configuration key or value, in code or in the environment, is not legal."""


class UnknownKeyError(ConfigError, AttributeError):
    """A configuration key does not exist, seen as an entry of the dict or as an attribute of a section."""


class ClusterError(EplError, ValueError):
    """The description of the job (TF_CONFIG, hosts, local devices) is incomplete or contradictory."""


class JobSecretError(EplError, ValueError):
    """The secret of the job, as the environment gives it, cannot be used."""


class LayoutError(EplError, RuntimeError, ValueError):
    """The devices of the job cannot be laid out as asked.

    EPL raises `RuntimeError` or `ValueError` according to the case; an `except` clause for either catches this one.
    """


class NestingError(EplError, RuntimeError):
    """Strategy scopes are nested in a way that has no meaning."""


class PlanError(EplError, RuntimeError):
    """The annotated model cannot run on this job as asked."""


class NotAvailableError(PlanError):
    """The script asks for a documented feature that is not implemented yet."""

    def __init__(self, key: str, detail: str = "") -> None:
        """Says which key asks for the feature.

        Args:
          key: what requests it: a configuration key such as `zero.level`, or a call such as `epl.split`.
          detail: what to do instead, as a sentence; left out when empty.
        """
        message = f"not available yet: {key}"
        super().__init__(f"{message}. {detail}" if detail else message)
        self.key = key


class AnnotationError(EplError, RuntimeError, ValueError):
    """A strategy annotation is given at the wrong time or with the wrong arguments."""


class PlanMismatchError(PlanError):
    """The processes of the job built different models, so their collectives would not meet."""


class ReplicaError(EplError, RuntimeError):
    """Variables that replicas must hold with equal bits differ."""


class TraceError(EplError, ValueError):
    """A file is no trace, or traces do not fit together."""


class WorkerError(EplError, RuntimeError):
    """A worker of `epl.run` failed.

    Attributes:
      worker: its rank.
    """

    def __init__(self, message: str, worker: int) -> None:
        super().__init__(message)
        self.worker = worker


class CheckpointError(EplError, ValueError):
    """A checkpoint cannot be restored as asked."""


class FeedError(EplError, ValueError):
    """A fed value cannot be divided among the replicas."""


class MachineError(EplError, ValueError):
    """A machine file, or the short form of a machine, is wrong; or a device is asked for that the machine lacks."""
