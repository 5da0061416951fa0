#!/usr/bin/env bash
# Data parallel: WORKERS x DEVICES copies of the model, each with batches of its own.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run dp "$@"
