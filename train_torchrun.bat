@echo off
rem As train_torchrun.sh, on Windows: the same run on every GPU of this machine; 2 processes on one without.
rem   set "NUM_GPUS=2" & train_torchrun.bat --dataset_path VOC2012
setlocal
set "USE_LIBUV=0"
if not defined PYTHON if not defined VIRTUAL_ENV if exist "%~dp0.venv\Scripts\python.exe" set "PYTHON=%~dp0.venv\Scripts\python.exe"
if not defined PYTHON set "PYTHON=python"
if not defined NUM_GPUS for /f %%n in ('call "%PYTHON%" -c "import torch; print(torch.cuda.device_count() or 2)"') do set "NUM_GPUS=%%n"
if not defined OMP_NUM_THREADS set "OMP_NUM_THREADS=1"
"%PYTHON%" "%~dp0scripts\without_libuv.py" torch.distributed.run --standalone --nproc_per_node %NUM_GPUS% ^
    "%~dp0train.py" --distributed %*
