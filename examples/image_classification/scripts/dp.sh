#!/usr/bin/env bash
# Data parallel on this machine: prepares the data, trains by train_dp.sh, evaluates.
OUTPUT=${OUTPUT:-experiments/images_dp}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run train_dp.sh "$@"
