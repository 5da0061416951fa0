#!/usr/bin/env bash
# With a split head, as one worker of a job: each device has the convolutions, batches of its own, and its share of the
# classes of the head.
#   epl-launch --num_workers 2 --gpu_per_worker 1 examples/image_classification/scripts/train_split.sh
# Options after the script go to train_images.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

train split "$@"
