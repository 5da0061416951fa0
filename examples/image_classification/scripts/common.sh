# What the launch scripts share; sourced, not run. Options behind a script go to train_images.py.
# Every setting can be given in the environment; without IMAGES or RECORDS the small set is trained on.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$HERE/../environment.sh"

# run VARIANT OPTION...: prepares the images, trains, evaluates; everything goes to experiments/images_VARIANT.
run() {
  local variant=$1
  shift
  OUTPUT=${OUTPUT:-experiments/images_$variant}
  if [ -n "${RECORDS:-}" ] || [ -n "${IMAGES:-}" ]; then
    MODEL=(--depth "${DEPTH:-50}" --width "${WIDTH:-64}" --image_size "${IMAGE_SIZE:-224}")
    TRAINING=(--batch_size "${BATCH:-64}" --epochs "${EPOCHS:-90}")
  else
    MODEL=(--depth "${DEPTH:-50}" --width "${WIDTH:-16}" --image_size "${IMAGE_SIZE:-32}")
    TRAINING=(--batch_size "${BATCH:-16}" --epochs "${EPOCHS:-12}" --least_area 0.6 --no_flip)
  fi
  if [ -z "${RECORDS:-}" ]; then
    RECORDS=$OUTPUT/records
    SOURCE=(--small)
    if [ -n "${IMAGES:-}" ]; then
      SOURCE=(--images "$IMAGES")
    fi
    "$PYTHON" "$HERE/prepare_images.py" "${SOURCE[@]}" --output "$RECORDS"
  fi
  "$ROOT/tools/epl-launch" --num_workers "${WORKERS:-1}" --gpu_per_worker "${DEVICES:-2}" --log_dir "$OUTPUT/logs" \
    "$HERE/train_images.py" --records "$RECORDS" --output "$OUTPUT/model" --variant "$variant" \
    "${MODEL[@]}" "${TRAINING[@]}" "$@"
  "$PYTHON" "$HERE/evaluate_images.py" --records "$RECORDS" --checkpoint "$OUTPUT/model" \
    --split "${TEST_SPLIT:-test}" "${MODEL[@]}"
}
