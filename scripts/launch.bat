@echo off
rem Like launch.sh, on Windows: run launch.py with PYTHON, else the Python of the active environment, else that of .venv.
setlocal
if not defined PYTHON if not defined VIRTUAL_ENV if exist "%~dp0..\.venv\Scripts\python.exe" set "PYTHON=%~dp0..\.venv\Scripts\python.exe"
if not defined PYTHON set "PYTHON=python"
"%PYTHON%" "%~dp0launch.py" %*
