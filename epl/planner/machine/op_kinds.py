"""Kinds of ops that run at a rate of their own: the words of the cost tables and of machine files."""


class Kind:
    """Ops whose FLOPs take about equally long."""

    FREE = "free"  # no work: an alias, a constant, bookkeeping
    MOVE = "move"  # moves bytes only, in long runs
    REARRANGE = "rearrange"  # moves bytes only, one element at a time
    MATMUL = "matmul"
    BATCH_MATMUL = "batch matmul"
    CONVOLUTION = "convolution"
    DEPTHWISE = "depthwise convolution"
    ELEMENTWISE = "elementwise"
    TRANSCENDENTAL = "transcendental"
    SLOW = "slow transcendental"  # without vector instructions on a CPU
    REDUCTION = "reduction"
    SEARCH = "search"
    SOFTMAX = "softmax"
    CROSS_ENTROPY = "cross entropy"
    NORM = "norm"
    POOL = "pool"
    RANDOM = "random"
    CALL = "call"  # a function; EPL does not look into its body
    UNKNOWN = "unknown"  # not in the table


# A machine may give all of CONTRACTIONS one rate, under this name.
CONTRACTION = "contraction"
CONTRACTIONS = (Kind.MATMUL, Kind.BATCH_MATMUL, Kind.CONVOLUTION, Kind.DEPTHWISE)
# The names under which a machine gives rates.
RATED = (CONTRACTION,) + CONTRACTIONS + (
    Kind.ELEMENTWISE, Kind.TRANSCENDENTAL, Kind.SLOW, Kind.REDUCTION, Kind.SEARCH, Kind.SOFTMAX, Kind.CROSS_ENTROPY,
    Kind.NORM, Kind.POOL, Kind.RANDOM,
)  # fmt: skip
DTYPES = ("float32", "float16", "bfloat16", "float64")
