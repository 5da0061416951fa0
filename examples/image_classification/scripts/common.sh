# What the scripts share; sourced, not run. Options after a script go to train_images.py.
# Every setting can be given in the environment; without IMAGES or RECORDS the small set is trained on.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$HERE/../environment.sh"

DEVICES=${DEVICES:-2}
SPLIT=${TEST_SPLIT:-test}
if [ -n "${RECORDS:-}" ] || [ -n "${IMAGES:-}" ]; then
  MODEL=(--depth "${DEPTH:-50}" --width "${WIDTH:-64}" --image_size "${IMAGE_SIZE:-224}")
  TRAINING=(--batch_size "${BATCH:-64}" --epochs "${EPOCHS:-90}" --save_epochs "${SAVE_EPOCHS:-1}")
else
  MODEL=(--depth "${DEPTH:-50}" --width "${WIDTH:-16}" --image_size "${IMAGE_SIZE:-32}")
  TRAINING=(--batch_size "${BATCH:-16}" --epochs "${EPOCHS:-12}" --save_epochs "${SAVE_EPOCHS:-4}")
  TRAINING+=(--least_area 0.6 --no_flip)
fi

# train VARIANT OPTION...: what one worker of a job does; everything goes to experiments/images_VARIANT. Makes the records
# first, unless RECORDS has them.
train() {
  local variant=$1
  OUTPUT=${OUTPUT:-experiments/images_$variant}
  shift
  if [ "${1:-}" = "${EPL_TASK_DIR:-none}" ]; then
    shift # epl-launch gives it to a script without arguments
  fi
  local data=${RECORDS:-$OUTPUT/records}
  if [ -n "${IMAGES:-}" ] && [ -z "${RECORDS:-}" ]; then
    once "$data/dataset.json" "$IMAGES" "$PYTHON" "$HERE/prepare_images.py" --images "$IMAGES" --output "$data"
  elif [ -z "${RECORDS:-}" ]; then
    once "$data/dataset.json" "$HERE/prepare_images.py" "$PYTHON" "$HERE/prepare_images.py" --small --output "$data"
  fi
  exec "$PYTHON" "$HERE/train_images.py" --records "$data" --output "$OUTPUT/model" --variant "$variant" \
    --test_split "$SPLIT" "${MODEL[@]}" "${TRAINING[@]}" "$@"
}

# run VARIANT OPTION...: trains by train_VARIANT.sh on this machine, then exports the best checkpoint and measures it.
run() {
  export OUTPUT=${OUTPUT:-experiments/images_$1}
  local data=${RECORDS:-$OUTPUT/records}
  launch "$HERE/scripts/train_$1.sh" "${@:2}"
  rm -rf "$OUTPUT/saved_model"
  "$PYTHON" "$HERE/export_images.py" --records "$data" --checkpoint "$OUTPUT/model/best" --output "$OUTPUT/saved_model" \
    "${MODEL[@]}"
  "$PYTHON" "$HERE/evaluate_images.py" --records "$data" --checkpoint "$OUTPUT/model/best" --split "$SPLIT" "${MODEL[@]}"
}
