#!/usr/bin/env bash
# Train one stage of a config on every GPU of this machine: train_torchrun.sh with --config and --stage.
#   NUM_GPUS=4 bash scripts/train_multi_gpu.sh configs/pretrain_finetune.yaml pretrain --total_batchsize 32
set -euo pipefail
usage="usage: train_multi_gpu.sh CONFIG STAGE [flags of train.py]"
if [ $# -lt 2 ]; then echo "$usage" >&2; exit 2; fi
config=$1 stage=$2
shift 2
exec bash "$(dirname "$0")/../train_torchrun.sh" --config "$config" --stage "$stage" "$@"
