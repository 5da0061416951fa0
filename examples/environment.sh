# What the launch scripts of all examples share; sourced, not run: ROOT, the interpreter, and where Python finds EPL.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${PYTHON:-}" ]; then
  PYTHON=${VIRTUAL_ENV:-$ROOT/.venv}/bin/python
fi
export PYTHON
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$ROOT
