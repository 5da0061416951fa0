#!/usr/bin/env bash
# Data parallel: WORKERS x DEVICES copies of the model, experts included, each with batches of its own.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run dp "$@"
