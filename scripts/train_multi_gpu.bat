@echo off
rem Like train_multi_gpu.sh, on Windows: CONFIG STAGE [flags of train.py]. CONFIG without spaces.
if "%~2"=="" echo usage: train_multi_gpu.bat CONFIG STAGE [flags of train.py]>&2 & exit /b 2
for /f "tokens=1,2,*" %%a in ("%*") do call "%~dp0train_torchrun.bat" --config %%a --stage %%b %%c
