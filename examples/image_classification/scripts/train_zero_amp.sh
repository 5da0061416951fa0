#!/usr/bin/env bash
# A worker of data parallel training in less memory: ZeRO, mixed precision and gradient checkpoint, by configuration alone.
export EPL_ZERO_LEVEL=v1 EPL_AMP_LEVEL=O1 EPL_AMP_LOSS_SCALE=dynamic EPL_GRADIENT_CHECKPOINT_TYPE=auto
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

train dp "$@"
