#!/usr/bin/env bash
# Data parallel, as one worker of a job: each device has the model, experts included, and batches of its own.
#   epl-launch --num_workers 2 --gpu_per_worker 1 examples/moe/scripts/train_dp_t5.sh
# Options after the script go to train_translation.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

train dp "$@"
