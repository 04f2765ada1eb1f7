"""train.py in float64, where a sum's order shows in the last digits only. Started by test_distributed.py."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
import errors
import train

torch.set_default_dtype(torch.float64)
sys.exit(errors.run(train.main))
