#!/usr/bin/env bash
# Like train_torchrun.sh, with the older torch.distributed.launch.
#   NUM_GPUS=2 bash train_ddp.sh --dataset_path VOC2012
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec bash "$here/scripts/launch.sh" torch.distributed.launch --standalone "$here/train.py" --distributed "$@"
