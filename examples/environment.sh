# What the launch scripts of all examples share; sourced, not run: ROOT, the interpreter, and where Python finds EPL.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${PYTHON:-}" ]; then
  PYTHON=${VIRTUAL_ENV:-$ROOT/.venv}/bin/python
  if [ ! -x "$PYTHON" ]; then
    PYTHON=python3 # as of conda, or of a container
  fi
fi
export PYTHON
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$ROOT

# once FILE SOURCE COMMAND...: runs the command, which makes the file from the source (a file or a folder), unless this has
# been done since the source changed. Of several workers with one file system one does it, and the others wait.
once() {
  local made=$1 source=$2
  shift 2
  mkdir -p "$(dirname "$made")"
  (
    flock 9
    if [ ! -e "$made" ] || [ ! -e "$made.by" ] || [ "$(cat "$made.by")" != "$*" ] ||
      [ -n "$(find -L "$source" -newer "$made.by" -print -quit)" ]; then
      rm -f "$made.by"
      "$@" && echo "$*" > "$made.by"
    fi
  ) 9> "$made.lock"
}

# launch SCRIPT ARGUMENT...: starts WORKERS processes with DEVICES each on this machine.
launch() {
  "$ROOT/tools/epl-launch" --num_workers "${WORKERS:-1}" --gpu_per_worker "$DEVICES" --log_dir "$OUTPUT/logs" "$@"
}
