#!/usr/bin/env bash
# On this machine: WORKERS processes with DEVICES each run train_bert_base_dp.sh; then the questions are answered.
DEVICES=${DEVICES:-2}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run dp "$@"
