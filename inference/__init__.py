"""Predict label maps, score them and report the scores."""
