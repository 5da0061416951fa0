#!/usr/bin/env bash
# On this machine: WORKERS processes with DEVICES each run train_moe_t5.sh; then the text is translated.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run moe train_moe_t5.sh "$@"
