#!/usr/bin/env bash
# Pipeline: the layers are dealt over STAGES stages, one device each; what remains of the devices are further copies.
# A step takes BATCH x MICRO_BATCHES windows for each copy. Options behind the script go to train.py.
STAGES=${STAGES:-2} MICRO_BATCHES=${MICRO_BATCHES:-4}
DEVICES=${DEVICES:-$STAGES}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare pipeline
launch "${BATCH:-4}" --variant pipeline --num_stages "$STAGES" --num_micro_batch "$MICRO_BATCHES" "$@"
answer
