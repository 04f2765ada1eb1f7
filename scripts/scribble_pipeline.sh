#!/usr/bin/env bash
# From images and scribbles to a scored model: tools/scribbles/pipeline.py explains it.
#   bash scripts/scribble_pipeline.sh DATA OUT
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python}
if [ -z "${PYTHON:-}${VIRTUAL_ENV:-}" ] && [ -x "$here/.venv/bin/python" ]; then python=$here/.venv/bin/python; fi
exec "$python" "$here/tools/scribbles/pipeline.py" "$@"
