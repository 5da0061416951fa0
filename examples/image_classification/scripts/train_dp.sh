#!/usr/bin/env bash
# A worker of data parallel training: copies of the model, each with batches of its own.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

train dp "$@"
