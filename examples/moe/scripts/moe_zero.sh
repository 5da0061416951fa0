#!/usr/bin/env bash
# On this machine: WORKERS processes with DEVICES each run train_moe_t5_zero.sh; then the text is translated.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run moe_zero train_moe_t5_zero.sh "$@"
