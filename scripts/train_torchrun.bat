@echo off
rem Like train_torchrun.sh, on Windows: train on every GPU of this machine, or with 2 processes without a GPU.
rem   set "NUM_GPUS=2" & scripts\train_torchrun.bat --dataset_path VOC2012
"%~dp0launch.bat" torch.distributed.run --standalone "%~dp0..\train.py" --distributed %*
