"""Networks that draw random numbers in training."""

from torch import nn


def make_draw(network: nn.Module) -> None:
    """Give a network of timm dropout, also in its attention, and stochastic depth."""
    from timm.layers import DropPath  # imported here because timm is optional

    for part in list(network.modules()):
        if isinstance(part, nn.Dropout):
            part.p = 0.3
        for child in ("drop_path", "drop_path1"):
            if hasattr(part, child):
                setattr(part, child, DropPath(0.3))
        if getattr(part, "gamma", None) is not None:  # ConvNeXt's: at its first value, 1e-6, no draw would show
            nn.init.constant_(part.gamma, 0.5)
