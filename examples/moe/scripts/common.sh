# What the launch scripts share; sourced, not run. Options behind a script go to train_translation.py.
# Every setting can be given in the environment; without PAIRS the small set in data/ is trained on.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$HERE/../environment.sh"

# run VARIANT OPTION...: prepares the pairs, trains, translates; everything goes to experiments/translation_VARIANT.
run() {
  local variant=$1
  shift
  OUTPUT=${OUTPUT:-experiments/translation_$variant}
  if [ -n "${PAIRS:-}" ]; then
    TEXT=${TEXT:-$PAIRS}
    PREPARING=(--vocabulary_size "${VOCABULARY_SIZE:-8000}")
    MODEL=(--width "${WIDTH:-512}" --hidden "${HIDDEN:-2048}" --layers "${LAYERS:-6}" --experts "${EXPERTS:-8}")
    MODEL+=(--heads "${HEADS:-8}")
    TRAINING=(--batch_size "${BATCH:-64}" --epochs "${EPOCHS:-10}")
  else
    PAIRS=$HERE/data/verses.tsv
    TEXT=${TEXT:-$PAIRS}
    PREPARING=(--vocabulary_size "${VOCABULARY_SIZE:-1200}")
    MODEL=(--width "${WIDTH:-64}" --hidden "${HIDDEN:-128}" --layers "${LAYERS:-2}" --experts "${EXPERTS:-4}")
    MODEL+=(--heads "${HEADS:-4}")
    TRAINING=(--batch_size "${BATCH:-16}" --epochs "${EPOCHS:-60}" --learning_rate 3e-3 --warm_up 100)
    TRAINING+=(--dropout 0 --log_steps 20)
  fi
  MODEL+=(--gate "${GATE:-top2}" --capacity_factor "${CAPACITY:-1.25}")
  "$PYTHON" "$HERE/prepare_pairs.py" --pairs "$PAIRS" "${PREPARING[@]}" --max_length "${MAX_LENGTH:-64}" \
    --output "$OUTPUT/pairs"
  "$ROOT/tools/epl-launch" --num_workers "${WORKERS:-1}" --gpu_per_worker "${DEVICES:-2}" --log_dir "$OUTPUT/logs" \
    "$HERE/train_translation.py" --pairs "$OUTPUT/pairs" --output "$OUTPUT/model" --variant "$variant" \
    "${MODEL[@]}" "${TRAINING[@]}" "$@"
  "$PYTHON" "$HERE/translate.py" --pairs "$OUTPUT/pairs" --checkpoint "$OUTPUT/model" --text "$TEXT" \
    --output "$OUTPUT/translations.txt" "${MODEL[@]}"
}
