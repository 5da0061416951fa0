#!/usr/bin/env bash
# Data parallel, as one worker of a job: each device has the model and batches of its own.
#   epl-launch --num_workers 2 --gpu_per_worker 1 examples/image_classification/scripts/train_dp.sh
# Options after the script go to train_images.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

train dp "$@"
