#!/usr/bin/env bash
# On this machine: WORKERS processes with DEVICES each run train_moe_t5_zero.sh; then the text is translated.
OUTPUT=${OUTPUT:-experiments/translation_moe_zero}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run moe train_moe_t5_zero.sh "$@"
