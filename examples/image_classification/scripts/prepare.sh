#!/usr/bin/env bash
# Makes the records, once before a training on several machines.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare
