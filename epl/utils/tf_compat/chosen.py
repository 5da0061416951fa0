"""The names of tf1.py or of tf2.py, as TensorFlow's version says."""

from typing import TYPE_CHECKING

from epl.utils.tf_compat.needed import IS_TENSORFLOW_1

if TYPE_CHECKING or IS_TENSORFLOW_1:
    from epl.utils.tf_compat.tf1 import *  # noqa: F403
else:
    from epl.utils.tf_compat.tf2 import *  # noqa: F403
