"""python -m for start() of conftest.py, whose processes have done most imports: run_module.py MODULE [words]."""

import runpy
import sys

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
