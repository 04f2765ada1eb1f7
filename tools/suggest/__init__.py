"""Suggest where to draw next."""
