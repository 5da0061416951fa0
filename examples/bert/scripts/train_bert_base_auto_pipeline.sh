#!/usr/bin/env bash
# Automatic pipeline, as one worker of a job: as train_bert_base_pipeline.sh, but the model has no annotation, and EPL
# cuts it into STAGES stages.
#   epl-launch --num_workers 1 --gpu_per_worker 2 examples/bert/scripts/train_bert_base_auto_pipeline.sh
# Options after the script go to train.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

OPTIONS=(--variant auto --num_stages "${STAGES:-2}" --num_micro_batch "${MICRO_BATCHES:-4}")
OPTIONS+=(--batch_size "${BATCH:-4}")
train auto_pipeline "$@"
