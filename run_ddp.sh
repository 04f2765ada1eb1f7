#!/usr/bin/env bash
# A config on the GPUs of one machine or of many: the same command on each, but for NODE_RANK. TASK: train, test or predict.
#   CONFIG=configs/camvid.yaml NNODES=2 NODE_RANK=0 MASTER_ADDR=node0 bash run_ddp.sh --epochs 20
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python}
if [ -z "${PYTHON:-}${VIRTUAL_ENV:-}" ] && [ -x "$here/.venv/bin/python" ]; then python=$here/.venv/bin/python; fi
num=${NUM_GPUS:-$("$python" -c 'import torch; print(torch.cuda.device_count() or 2)')}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
if [ "${NNODES:-1}" != 1 ]; then : "${MASTER_ADDR:?set it to the address of the machine of NODE_RANK 0}"; fi
exec "$python" -m torch.distributed.run --nproc_per_node "$num" --nnodes "${NNODES:-1}" --node_rank "${NODE_RANK:-0}" \
    --master_addr "${MASTER_ADDR:-localhost}" --master_port "${MASTER_PORT:-29500}" \
    --signals_to_handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \
    "$here/train.py" --config "${CONFIG:-$here/configs/ddp_example.yaml}" --task "${TASK:-train}" "$@"
