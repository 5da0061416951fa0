#!/usr/bin/env bash
# Automatic pipeline: the model has no annotation, EPL cuts it into STAGES stages.
# A step takes BATCH x MICRO_BATCHES windows for each copy. Options behind the script go to train.py.
STAGES=${STAGES:-2} MICRO_BATCHES=${MICRO_BATCHES:-4}
DEVICES=${DEVICES:-$STAGES}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare auto_pipeline
launch "${BATCH:-4}" --variant auto --num_stages "$STAGES" --num_micro_batch "$MICRO_BATCHES" "$@"
answer
