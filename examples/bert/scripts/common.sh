# What the three launch scripts share; sourced, not run. Every setting can be given in the environment.
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
  WEIGHTS=(--init_checkpoint "$BERT_DIR/bert_model.ckpt")
  WINDOW=(--max_seq_length "${MAX_SEQ_LENGTH:-384}" --doc_stride "${DOC_STRIDE:-128}")
  WINDOW+=(--max_query_length "${MAX_QUERY_LENGTH:-64}")
  EPOCHS=${EPOCHS:-2}
  LEARNING_RATE=${LEARNING_RATE:-5e-5}
else
  TRAIN=${TRAIN:-$BERT/data/small-v1.1.json}
  DEV=${DEV:-$TRAIN}
  VOCABULARY=${VOCABULARY:-$BERT/data/vocab.txt}
  CONFIG=${CONFIG:-$BERT/configs/tiny.json}
  WEIGHTS=()
  WINDOW=(--max_seq_length "${MAX_SEQ_LENGTH:-128}" --doc_stride "${DOC_STRIDE:-64}")
  WINDOW+=(--max_query_length "${MAX_QUERY_LENGTH:-24}")
  EPOCHS=${EPOCHS:-30}
  LEARNING_RATE=${LEARNING_RATE:-1e-3}
fi
if [ -n "${MAX_QUESTIONS:-}" ]; then
  WINDOW+=(--max_questions "$MAX_QUESTIONS")
fi
WORKERS=${WORKERS:-1}

# prepare NAME: the windows of the training questions; the runs' files go to experiments/bert_NAME.
prepare() {
  OUTPUT=${OUTPUT:-experiments/bert_$1}
  mkdir -p "$OUTPUT"
  "$PYTHON" "$BERT/prepare.py" --data "$TRAIN" --vocabulary "$VOCABULARY" "${WINDOW[@]}" --output "$OUTPUT/train.tfrecord"
}

# launch BATCH OPTION...: trains; the options say how.
launch() {
  local batch=$1
  shift
  "$ROOT/tools/epl-launch" --num_workers "$WORKERS" --gpu_per_worker "$DEVICES" --log_dir "$OUTPUT/logs" \
    "$BERT/train.py" --records "$OUTPUT/train.tfrecord" --config "$CONFIG" ${WEIGHTS[@]+"${WEIGHTS[@]}"} \
    --output "$OUTPUT/model" --batch_size "$batch" --epochs "$EPOCHS" --learning_rate "$LEARNING_RATE" "$@"
}

# Answers the questions of DEV with the trained model, and measures the answers.
answer() {
  "$PYTHON" "$BERT/predict.py" --data "$DEV" --vocabulary "$VOCABULARY" "${WINDOW[@]}" --config "$CONFIG" \
    --checkpoint "$OUTPUT/model" --output "$OUTPUT/predictions.json" --n_best_output "$OUTPUT/n_best.json"
}
