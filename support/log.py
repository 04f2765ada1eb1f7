"""The logger of all rooms. training.record.log sends its lines to rank 0's terminal and to a run's train.log."""

import logging

log = logging.getLogger("segtrain")
