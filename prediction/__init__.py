"""Inputs and outputs of predict.py."""
