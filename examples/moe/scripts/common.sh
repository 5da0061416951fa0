# What the launch scripts share; sourced, not run. Options after a script go to train_translation.py.
# Every setting can be given in the environment; without PAIRS the small set in data/ is trained on.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$HERE/../environment.sh"

DEVICES=${DEVICES:-2}
if [ -n "${PAIRS:-}" ]; then
  TEXT=${TEXT:-$PAIRS}
  PREPARING=(--vocabulary_size "${VOCABULARY_SIZE:-8000}")
  MODEL=(--width "${WIDTH:-512}" --hidden "${HIDDEN:-2048}" --layers "${LAYERS:-6}" --experts "${EXPERTS:-8}")
  MODEL+=(--heads "${HEADS:-8}")
  TRAINING=(--batch_size "${BATCH:-64}" --epochs "${EPOCHS:-10}" --save_steps "${SAVE_STEPS:-1000}")
else
  PAIRS=$HERE/data/verses.tsv
  TEXT=${TEXT:-$PAIRS}
  PREPARING=(--vocabulary_size "${VOCABULARY_SIZE:-1200}")
  MODEL=(--width "${WIDTH:-64}" --hidden "${HIDDEN:-128}" --layers "${LAYERS:-2}" --experts "${EXPERTS:-4}")
  MODEL+=(--heads "${HEADS:-4}")
  TRAINING=(--batch_size "${BATCH:-16}" --epochs "${EPOCHS:-60}" --save_steps "${SAVE_STEPS:-100}")
  TRAINING+=(--learning_rate 3e-3 --warm_up 100 --dropout 0 --summary_steps 5)
fi
PREPARING+=(--max_length "${MAX_LENGTH:-64}")
MODEL+=(--gate "${GATE:-top2}" --capacity_factor "${CAPACITY:-1.25}")

# train VARIANT OPTION...: what one worker of a job does; everything goes to experiments/translation_VARIANT. Prepares the
# pairs first.
train() {
  local variant=$1
  OUTPUT=${OUTPUT:-experiments/translation_$variant}
  shift
  if [ "${1:-}" = "${EPL_TASK_DIR:-none}" ]; then
    shift  # epl-launch gives it to a script without arguments
  fi
  once "$OUTPUT/pairs/train.tfrecord" "$PAIRS" \
    "$PYTHON" "$HERE/prepare_pairs.py" --pairs "$PAIRS" "${PREPARING[@]}" --output "$OUTPUT/pairs"
  exec "$PYTHON" "$HERE/train_translation.py" --pairs "$OUTPUT/pairs" --output "$OUTPUT/model" --variant "$variant" \
    --eval_pairs "$TEXT" "${MODEL[@]}" "${TRAINING[@]}" "$@"
}

# run VARIANT SCRIPT OPTION...: trains by the script on this machine, then exports the best checkpoint and translates TEXT.
run() {
  export OUTPUT=${OUTPUT:-experiments/translation_$1}
  launch "$HERE/scripts/$2" "${@:3}"
  rm -rf "$OUTPUT/saved_model"
  "$PYTHON" "$HERE/export_translation.py" --pairs "$OUTPUT/pairs" --checkpoint "$OUTPUT/model/best" \
    --output "$OUTPUT/saved_model" "${MODEL[@]}"
  "$PYTHON" "$HERE/translate.py" --pairs "$OUTPUT/pairs" --checkpoint "$OUTPUT/model/best" --text "$TEXT" \
    --output "$OUTPUT/translations.txt" "${MODEL[@]}"
}
