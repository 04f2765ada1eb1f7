"""The inputs and outputs of predict.py."""
