"""Predicting and scoring."""
