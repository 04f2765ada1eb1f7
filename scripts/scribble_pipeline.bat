@echo off
rem Like scribble_pipeline.sh, on Windows: from images and scribbles to a scored model.
setlocal
if not defined PYTHON if not defined VIRTUAL_ENV if exist "%~dp0..\.venv\Scripts\python.exe" set "PYTHON=%~dp0..\.venv\Scripts\python.exe"
if not defined PYTHON set "PYTHON=python"
"%PYTHON%" "%~dp0..\tools\scribbles\pipeline.py" %*
