"""Strokes in: convert those that a person drew, simulate them from dense masks, and compare the two in numbers."""
