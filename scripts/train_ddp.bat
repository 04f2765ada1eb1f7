@echo off
rem Like train_ddp.sh, on Windows: train_torchrun.bat with the older torch.distributed.launch.
rem   set "NUM_GPUS=2" & scripts\train_ddp.bat --dataset_path VOC2012
"%~dp0launch.bat" torch.distributed.launch --standalone "%~dp0..\train.py" --distributed %*
