"""Predict with the model of a checkpoint, in your own Python code.

import segtrain
model = segtrain.load("best.pt")
result = model.predict("photo.jpg")
result.mask  # (height, width) uint8: class numbers
result.save("photo.png")

`pip install .` makes this module the package `segtrain` (scripts/build_package.py).
"""

from typing import TYPE_CHECKING

from support.errors import UserError

if TYPE_CHECKING:
    from inference.api import LoadedModel, Result
    from inference.trained import load

__version__ = "0.4.0"
__all__ = ["LoadedModel", "Result", "UserError", "__version__", "load"]


def __getattr__(name: str) -> object:
    """Import what needs torch when it is used first: torch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from inference.api import LoadedModel, Result
    from inference.trained import load

    return {"LoadedModel": LoadedModel, "Result": Result, "load": load}[name]


def __dir__() -> list[str]:
    return __all__
