#!/usr/bin/env bash
# Train on every GPU of this machine with torchrun, or with 2 processes on a machine without a GPU.
#   NUM_GPUS=2 bash train_torchrun.sh --dataset_path VOC2012
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec bash "$here/scripts/launch.sh" torch.distributed.run --standalone "$here/train.py" --distributed "$@"
