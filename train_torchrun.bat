@echo off
rem Like train_torchrun.sh, on Windows: train on every GPU of this machine, or with 2 processes without a GPU.
rem   set "NUM_GPUS=2" & train_torchrun.bat --dataset_path VOC2012
"%~dp0scripts\launch.bat" torch.distributed.run --standalone "%~dp0train.py" --distributed %*
