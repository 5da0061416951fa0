#!/usr/bin/env bash
# Exports the best checkpoint as a SavedModel, and measures it.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

evaluate
