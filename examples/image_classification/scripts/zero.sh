#!/usr/bin/env bash
# On this machine: WORKERS processes with DEVICES each run train_zero.sh; then the test images are classified.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run zero "$@"
