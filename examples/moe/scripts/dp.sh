#!/usr/bin/env bash
# On this machine: WORKERS processes with DEVICES each run train_dp_t5.sh; then the text is translated.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run dp train_dp_t5.sh "$@"
