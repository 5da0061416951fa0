#!/usr/bin/env bash
# With a split head on this machine: prepares the data, trains by train_split.sh, evaluates.
OUTPUT=${OUTPUT:-experiments/images_split}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run train_split.sh "$@"
