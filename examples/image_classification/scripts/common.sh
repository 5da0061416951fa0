# What the scripts share; sourced, not run. Options behind a training script go to train_images.py.
# Every setting can be given in the environment; without IMAGES or RECORDS the small set is trained on.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$HERE/../environment.sh"

OUTPUT=${OUTPUT:-experiments/images}
if [ -n "${RECORDS:-}" ] || [ -n "${IMAGES:-}" ]; then
  MODEL=(--depth "${DEPTH:-50}" --width "${WIDTH:-64}" --image_size "${IMAGE_SIZE:-224}")
  TRAINING=(--batch_size "${BATCH:-64}" --epochs "${EPOCHS:-90}")
else
  MODEL=(--depth "${DEPTH:-50}" --width "${WIDTH:-16}" --image_size "${IMAGE_SIZE:-32}")
  TRAINING=(--batch_size "${BATCH:-16}" --epochs "${EPOCHS:-12}" --evaluate_epochs 4 --least_area 0.6 --no_flip)
fi
DATA=${RECORDS:-$OUTPUT/records}

# Makes the records, unless RECORDS has them.
prepare() {
  if [ -z "${RECORDS:-}" ]; then
    SOURCE=(--small)
    if [ -n "${IMAGES:-}" ]; then
      SOURCE=(--images "$IMAGES")
    fi
    "$PYTHON" "$HERE/prepare_images.py" "${SOURCE[@]}" --output "$DATA"
  fi
}

# train VARIANT OPTION...: what each worker runs, and a plain shell for one device.
train() {
  local variant=$1
  shift
  if [ "${1:-}" = "${EPL_TASK_DIR:-}" ]; then # of epl-launch, to a script without arguments
    shift $#
  fi
  exec "$PYTHON" -u "$HERE/train_images.py" --records "$DATA" --output "$OUTPUT/model" --variant "$variant" \
    --test_split "${TEST_SPLIT:-test}" "${MODEL[@]}" "${TRAINING[@]}" "$@"
}

# Exports the best checkpoint, and measures it.
evaluate() {
  "$PYTHON" "$HERE/export_images.py" --records "$DATA" --checkpoint "$OUTPUT/model/best" --output "$OUTPUT/export" \
    "${MODEL[@]}"
  "$PYTHON" "$HERE/evaluate_images.py" --records "$DATA" --checkpoint "$OUTPUT/model/best" \
    --split "${TEST_SPLIT:-test}" "${MODEL[@]}"
}

# run SCRIPT OPTION...: all of it on this machine, with a script that trains.
run() {
  local script=$1
  shift
  export OUTPUT
  prepare
  "$ROOT/tools/epl-launch" --num_workers "${WORKERS:-1}" --gpu_per_worker "${DEVICES:-2}" --log_dir "$OUTPUT/logs" \
    "$HERE/scripts/$script" "$@"
  evaluate
}
