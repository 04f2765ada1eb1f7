"""What python -m data.convert does: labels of annotation tools and other formats become palette PNGs."""
