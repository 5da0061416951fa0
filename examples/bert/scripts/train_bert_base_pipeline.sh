#!/usr/bin/env bash
# Pipeline, as one worker of a job: the layers are dealt over STAGES stages, one device each; what remains of the
# devices are further copies. A step takes MICRO_BATCHES batches of BATCH windows for each copy.
#   epl-launch --num_workers 1 --gpu_per_worker 2 examples/bert/scripts/train_bert_base_pipeline.sh
# Options after the script go to train.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

OPTIONS=(--variant pipeline --num_stages "${STAGES:-2}" --num_micro_batch "${MICRO_BATCHES:-4}")
OPTIONS+=(--batch_size "${BATCH:-4}")
train pipeline "$@"
