"""Pseudo-labels from scribbles: spread strokes, confidence of a model, the output folder of pseudo.py."""
