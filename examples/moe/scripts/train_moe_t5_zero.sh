#!/usr/bin/env bash
# As train_moe_t5.sh, with little memory: ZeRO for what is replicated, mixed precision and gradient checkpoint.
#   epl-launch --num_workers 2 --gpu_per_worker 1 examples/moe/scripts/train_moe_t5_zero.sh
# Options after the script go to train_translation.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if ! nvidia-smi -L > /dev/null 2>&1; then
  export EPL_AMP_DTYPE=${EPL_AMP_DTYPE:-bfloat16}  # a CPU computes in float16 hundreds of times slower
fi
train moe_zero "$@"
