#!/usr/bin/env bash
# Data parallel, as one worker of a job: each device has the model, and batches of BATCH windows of its own.
#   epl-launch --num_workers 1 --gpu_per_worker 2 examples/bert/scripts/train_bert_base_dp.sh
# Options after the script go to train.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

OPTIONS=(--variant dp --batch_size "${BATCH:-8}")
train dp "$@"
