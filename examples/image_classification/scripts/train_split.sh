#!/usr/bin/env bash
# A worker of a training whose head is split: copies of the convolutions, each with batches of its own; the classes of
# the head are dealt out to all devices.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

train split "$@"
