# make train: set up .venv and train on the demo data. make lint: the linters.
# make scribble-demo: set up, and go from the demo's scribbles to a scored model (docs/scribbles.md).
# make test: set up and run the tests for each change. make test-all: these, then those marked slow.
# Two tests run at a time, and each process has one thread: threads that wait for each other would take both cores.
# ARGS goes through: make train ARGS="--dataset_path VOC2012", make test ARGS="-k losses"
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: train scribble-demo test test-all lint
.DELETE_ON_ERROR:
train: .venv/.installed
	$(BIN)/python train.py $(ARGS)

scribble-demo: .venv/.installed
	$(BIN)/python -c 'from data.demo import draw_dataset; from training.data import DEMO_ROOT; draw_dataset(DEMO_ROOT)'
	PYTHON=$(BIN)/python bash scripts/scribble_pipeline.sh dataset/demo log/scribble_demo --config configs/demo.yaml $(ARGS)

test: .venv/.installed-dev
	$(PYTEST) -m "not slow" $(ARGS)

test-all: test
	$(PYTEST) -m slow $(ARGS)

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; text = "%s is Python %d.%d: 3.10 to 3.14 are supported" % ((sys.executable,) + v); sys.exit(text + "; make PYTHON=python3.12") if v < (3, 10) else v > (3, 14) and print(text + "; trying it")'
	$(PYTHON) -m venv .venv

# The first command fails if a package is missing. Without it pip prints a line for each that is installed already.
# OpenCV's desktop build needs system libraries that a server may lack; its headless build does not.
.venv/.installed: requirements.txt | .venv/bin/python
	@$(INSTALL) --quiet --no-index -r requirements.txt 2>/dev/null || $(INSTALL) -r requirements.txt
	@$(BIN)/python -c 'import cv2' 2>/dev/null || $(INSTALL) --force-reinstall --no-deps 'opencv-python-headless>=4.8.1.78,<6'
	@touch $@

.venv/.installed-dev: pyproject.toml .venv/.installed
	$(INSTALL) -e '.[dev]'
	@touch $@
