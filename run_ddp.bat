@echo off
rem As run_ddp.sh, on Windows: a config on the GPUs of one machine or of many, by the same variables.
setlocal
set "USE_LIBUV=0"
if not defined PYTHON if not defined VIRTUAL_ENV if exist "%~dp0.venv\Scripts\python.exe" set "PYTHON=%~dp0.venv\Scripts\python.exe"
if not defined PYTHON set "PYTHON=python"
if not defined NUM_GPUS for /f %%n in ('call "%PYTHON%" -c "import torch; print(torch.cuda.device_count() or 2)"') do set "NUM_GPUS=%%n"
(if not defined OMP_NUM_THREADS set "OMP_NUM_THREADS=1") & (if not defined TASK set "TASK=train")
(if not defined NNODES set "NNODES=1") & (if not defined NODE_RANK set "NODE_RANK=0")
if not defined CONFIG set "CONFIG=%~dp0configs\ddp_example.yaml"
if not defined MASTER_ADDR if not "%NNODES%"=="1" echo MASTER_ADDR: set it to the address of the machine of rank zero>&2 & exit /b 1
(if not defined MASTER_ADDR set "MASTER_ADDR=localhost") & (if not defined MASTER_PORT set "MASTER_PORT=29500")
"%PYTHON%" "%~dp0scripts\without_libuv.py" torch.distributed.run --nproc_per_node %NUM_GPUS% --nnodes %NNODES% ^
    --node_rank %NODE_RANK% --master_addr "%MASTER_ADDR%" --master_port %MASTER_PORT% ^
    "%~dp0train.py" --config "%CONFIG%" --task %TASK% %*
