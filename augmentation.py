"""The augmentation of training samples, from the flags."""

from config import Config
from data.dataset import Transform
from data.jitter import ColourJitter
from data.sparse import SparseTransform
from data.transforms import CentreCrop, TrainTransform


def get_transform(cfg: Config) -> Transform:
    """Return the transform of training samples, with what the losses for sparse labels need of them."""
    kind = TrainTransform if cfg.augment else CentreCrop
    transform = kind(cfg.crop_size, long_side=cfg.long_side, outside=cfg.outside)
    if not (cfg.l_crf or cfg.l_absent or cfg.l_consistency):
        return transform
    jitter = ColourJitter(cfg.outside, cfg.stats.std if cfg.stats else None) if cfg.l_consistency else None
    return SparseTransform(transform, cfg.numclasses if cfg.l_absent else 0, jitter)
