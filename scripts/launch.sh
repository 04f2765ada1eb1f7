#!/usr/bin/env bash
# Run launch.py with PYTHON, else the Python of the active environment, else that of .venv.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python}
if [ -z "${PYTHON:-}${VIRTUAL_ENV:-}" ] && [ -x "$here/.venv/bin/python" ]; then python=$here/.venv/bin/python; fi
exec "$python" "$here/scripts/launch.py" "$@"
