#!/usr/bin/env bash
# In less memory on this machine: prepares the data, trains by train_zero_amp.sh, evaluates.
OUTPUT=${OUTPUT:-experiments/images_zero_amp}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run train_zero_amp.sh "$@"
