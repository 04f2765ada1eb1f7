#!/usr/bin/env bash
# As train_torchrun.sh, by the older torch.distributed.launch.
#   NUM_GPUS=2 bash train_ddp.sh --dataset_path VOC2012
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python}
if [ -z "${PYTHON:-}${VIRTUAL_ENV:-}" ] && [ -x "$here/.venv/bin/python" ]; then python=$here/.venv/bin/python; fi
num=${NUM_GPUS:-$("$python" -c 'import torch; print(torch.cuda.device_count() or 2)')}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# SIGUSR1 as well reaches the processes, which save and stop.
signals=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1
exec "$python" -m torch.distributed.launch --standalone --nproc_per_node "$num" --signals_to_handle $signals \
    "$here/train.py" --distributed "$@"
