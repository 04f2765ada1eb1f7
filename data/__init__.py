"""Images and labels: reading, sampling, augmentation, distance maps, demo data."""
