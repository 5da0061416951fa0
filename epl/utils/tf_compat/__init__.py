"""The only package that imports private TensorFlow symbols, and the only one that asks which TensorFlow this is.

Everything else sees TensorFlow through `import tensorflow.compat.v1 as tf` and through the names of this package. A
comment at each name says what it is used for.

    needed.py   first: is there a TensorFlow that EPL knows?
    tf1.py      what TensorFlow 1.15 has in its own way
    tf2.py      the same names for TensorFlow 2 in graph mode
    bulk_import.py   what both share of the import of many nodes
    tensors.py  sizes and dtype of a tensor, for both
    chosen.py   the one of the two that fits
    common.py   what is the same in both, and what is made of the names above
"""

from epl.utils.tf_compat import needed as needed  # before the next line

# isort: split
from epl.utils.tf_compat.chosen import *  # noqa: F403
from epl.utils.tf_compat.common import *  # noqa: F403
from epl.utils.tf_compat.tensors import output_type as output_type
