@echo off
rem Like train_ddp.sh, on Windows: train_torchrun.bat with the older torch.distributed.launch.
rem   set "NUM_GPUS=2" & train_ddp.bat --dataset_path VOC2012
"%~dp0scripts\launch.bat" torch.distributed.launch --standalone "%~dp0train.py" --distributed %*
