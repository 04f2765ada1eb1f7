#!/usr/bin/env bash
# Run a config on the GPUs of one machine or several: the same command on each, except for NODE_RANK. TASK: test or predict.
#   CONFIG=configs/camvid.yaml NNODES=2 NODE_RANK=0 MASTER_ADDR=node0 bash run_ddp.sh --epochs 20
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec bash "$here/scripts/launch.sh" torch.distributed.run --nnodes "${NNODES:-1}" --node_rank "${NODE_RANK:-0}" \
    --master_addr "${MASTER_ADDR:-localhost}" "$here/train.py" \
    --config "${CONFIG:-$here/configs/ddp_example.yaml}" "$@"
