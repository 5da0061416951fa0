"""The op types that are registered in this process, those of the native library included."""

from typing import Any, Dict

from tensorflow.core.framework import op_def_pb2

from epl.utils import tf_compat


def registered_ops() -> Dict[str, Any]:
    """The OpDef of each op type, by name."""
    buffer = tf_compat.c_api.TF_GetAllOpList()
    try:
        listed = op_def_pb2.OpList.FromString(tf_compat.c_api.TF_GetBuffer(buffer))
    finally:
        tf_compat.c_api.TF_DeleteBuffer(buffer)
    return {op.name: op for op in listed.op}
