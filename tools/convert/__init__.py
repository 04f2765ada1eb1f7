"""What python -m tools.convert does: labels of annotation tools and other formats become palette PNGs."""
