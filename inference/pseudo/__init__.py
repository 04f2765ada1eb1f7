"""Pseudo-labels from scribbles: spread strokes by a random walk; the output folder of pseudo.py."""
