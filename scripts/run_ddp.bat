@echo off
rem Like run_ddp.sh, on Windows: run a config on the GPUs of one machine or several, with the same variables.
setlocal
if not defined NNODES set "NNODES=1"
if not defined NODE_RANK set "NODE_RANK=0"
if not defined CONFIG set "CONFIG=%~dp0..\configs\ddp_example.yaml"
if not defined MASTER_ADDR set "MASTER_ADDR=localhost"
"%~dp0launch.bat" torch.distributed.run --nnodes %NNODES% --node_rank %NODE_RANK% --master_addr "%MASTER_ADDR%" ^
    "%~dp0..\train.py" --config "%CONFIG%" %*
