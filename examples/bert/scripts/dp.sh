#!/usr/bin/env bash
# Data parallel: WORKERS x DEVICES copies of the model, each with batches of its own.
# A step takes WORKERS x DEVICES x BATCH windows. Options behind the script go to train.py.
DEVICES=${DEVICES:-2}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare dp
launch "${BATCH:-8}" --variant dp "$@"
answer
