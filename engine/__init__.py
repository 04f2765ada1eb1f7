"""What happens around the model: process group, losses, metrics, inference, checkpoints, logs."""
