"""Pseudo-labels from scribbles: correct a model, spread strokes, the output folder of pseudo.py."""
