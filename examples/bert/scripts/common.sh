# What the launch scripts share; sourced, not run. Every setting can be given in the environment.
#
# With BERT_DIR (a published model: vocab.txt, bert_config.json, bert_model.ckpt.*) and SQUAD_DIR (train-v1.1.json,
# dev-v1.1.json) the real data is trained on; without them the small set in data/, from nothing, by the tiny model.
set -euo pipefail

BERT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$BERT/../environment.sh"

if [ -n "${BERT_DIR:-}" ]; then
  : "${SQUAD_DIR:?SQUAD_DIR must name the folder of train-v1.1.json and dev-v1.1.json}"
  TRAIN=${TRAIN:-$SQUAD_DIR/train-v1.1.json}
  DEV=${DEV:-$SQUAD_DIR/dev-v1.1.json}
  VOCABULARY=${VOCABULARY:-$BERT_DIR/vocab.txt}
  CONFIG=${CONFIG:-$BERT_DIR/bert_config.json}
  TRAINING=(--init_checkpoint "$BERT_DIR/bert_model.ckpt")
  MAX_SEQ_LENGTH=${MAX_SEQ_LENGTH:-384}
  WINDOW=(--doc_stride "${DOC_STRIDE:-128}" --max_query_length "${MAX_QUERY_LENGTH:-64}")
  TRAINING+=(--epochs "${EPOCHS:-2}" --learning_rate "${LEARNING_RATE:-5e-5}" --save_steps "${SAVE_STEPS:-1000}")
else
  TRAIN=${TRAIN:-$BERT/data/small-v1.1.json}
  DEV=${DEV:-$TRAIN}
  VOCABULARY=${VOCABULARY:-$BERT/data/vocab.txt}
  CONFIG=${CONFIG:-$BERT/configs/tiny.json}
  MAX_SEQ_LENGTH=${MAX_SEQ_LENGTH:-128}
  WINDOW=(--doc_stride "${DOC_STRIDE:-64}" --max_query_length "${MAX_QUERY_LENGTH:-24}")
  TRAINING=(--epochs "${EPOCHS:-30}" --learning_rate "${LEARNING_RATE:-1e-3}" --save_steps "${SAVE_STEPS:-100}")
  TRAINING+=(--summary_steps 5)
fi
WINDOW+=(--max_seq_length "$MAX_SEQ_LENGTH")
QUESTIONS=()
if [ -n "${MAX_QUESTIONS:-}" ]; then
  QUESTIONS=(--max_questions "$MAX_QUESTIONS")
fi

# train NAME OPTION...: what one worker of a job does; the run's files go to experiments/bert_NAME. Makes the windows of
# the training questions first.
train() {
  OUTPUT=${OUTPUT:-experiments/bert_$1}
  shift
  if [ "${1:-}" = "${EPL_TASK_DIR:-none}" ]; then
    shift  # epl-launch gives it to a script without arguments
  fi
  once "$OUTPUT/train.tfrecord" "$TRAIN" "$PYTHON" "$BERT/prepare.py" --data "$TRAIN" --vocabulary "$VOCABULARY" \
    "${WINDOW[@]}" ${QUESTIONS[@]+"${QUESTIONS[@]}"} --output "$OUTPUT/train.tfrecord"
  exec "$PYTHON" "$BERT/train.py" --records "$OUTPUT/train.tfrecord" --config "$CONFIG" --output "$OUTPUT/model" \
    --eval_data "$DEV" --vocabulary "$VOCABULARY" ${QUESTIONS[@]+"${QUESTIONS[@]}"} \
    "${TRAINING[@]}" "${OPTIONS[@]}" "$@"
}

# run NAME OPTION...: trains by train_bert_base_NAME.sh on this machine, then exports the best checkpoint and answers the
# questions of DEV by it.
run() {
  export OUTPUT=${OUTPUT:-experiments/bert_$1}
  launch "$BERT/scripts/train_bert_base_$1.sh" "${@:2}"
  rm -rf "$OUTPUT/saved_model"
  "$PYTHON" "$BERT/export.py" --vocabulary "$VOCABULARY" --config "$CONFIG" --checkpoint "$OUTPUT/model/best" \
    --max_seq_length "$MAX_SEQ_LENGTH" --output "$OUTPUT/saved_model"
  "$PYTHON" "$BERT/predict.py" --data "$DEV" --vocabulary "$VOCABULARY" "${WINDOW[@]}" \
    ${QUESTIONS[@]+"${QUESTIONS[@]}"} --config "$CONFIG" --checkpoint "$OUTPUT/model/best" \
    --output "$OUTPUT/predictions.json" --n_best_output "$OUTPUT/n_best.json"
}
