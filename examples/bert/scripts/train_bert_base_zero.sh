#!/usr/bin/env bash
# Data parallel with little memory, as one worker of a job: ZeRO, mixed precision and gradient checkpoint.
#   epl-launch --num_workers 1 --gpu_per_worker 2 examples/bert/scripts/train_bert_base_zero.sh
# Options after the script go to train.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if ! nvidia-smi -L > /dev/null 2>&1; then
  export EPL_AMP_DTYPE=${EPL_AMP_DTYPE:-bfloat16}  # a CPU computes in float16 hundreds of times slower
fi
OPTIONS=(--variant zero --batch_size "${BATCH:-8}")
train zero "$@"
