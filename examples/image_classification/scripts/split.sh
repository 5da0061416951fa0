#!/usr/bin/env bash
# WORKERS x DEVICES copies of the convolutions, each with batches of its own; the head is split over all of them.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run split "$@"
