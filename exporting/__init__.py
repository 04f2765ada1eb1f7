"""Exported models, and the check that they equal the checkpoint."""
