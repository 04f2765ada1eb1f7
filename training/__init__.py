"""A run: its state and schedule, and on disk its folder, log, curves and checkpoints."""
