"""A run: its plan, state, schedule, optimizer and checkpoints."""
