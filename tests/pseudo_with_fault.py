"""pseudo.py that gets a signal before it moves a file: pseudo_with_fault.py NUMBER SIGNAL [flags of pseudo.py].

NUMBER counts the files that are moved to their place, from 0: drafts, labels, notes, all that it writes.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import pseudo
from support import program
from tests.stopping import stop

moves = itertools.count()
replace = os.replace


def replace_or_stop(source, target) -> None:
    if next(moves) == int(sys.argv[1]):
        if sys.argv[2] == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        os.environ["SIGNAL"] = sys.argv[2]
        stop()
    replace(source, target)


os.replace = replace_or_stop

if __name__ == "__main__":
    program.run_and_exit(lambda: pseudo.main(sys.argv[3:]))
