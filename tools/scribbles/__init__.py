"""Simulate scribbles from dense masks."""
