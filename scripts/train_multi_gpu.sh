#!/usr/bin/env bash
# A stage of a config on every GPU of this machine: train_torchrun.sh with --config and --stage.
#   NUM_GPUS=4 bash scripts/train_multi_gpu.sh configs/pretrain_finetune.yaml pretrain --total_batchsize 32
set -euo pipefail
config=${1:?usage: train_multi_gpu.sh CONFIG STAGE [flags of train.py]}
stage=${2:?usage: train_multi_gpu.sh CONFIG STAGE [flags of train.py]}
shift 2
exec bash "$(dirname "$0")/../train_torchrun.sh" --config "$config" --stage "$stage" "$@"
