"""The augmentation of training samples."""
