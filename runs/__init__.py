"""A run on disk: its folder, log, curves and checkpoints."""
