#!/usr/bin/env bash
# WORKERS x DEVICES copies of attention, norms and tables, each with batches of its own; the experts are dealt out.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run moe "$@"
