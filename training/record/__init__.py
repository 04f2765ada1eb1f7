"""What a run leaves on disk: its folder, log, metrics, boards and pictures."""
