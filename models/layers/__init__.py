"""Convolutions, normalisation and blocks that networks are made of."""
