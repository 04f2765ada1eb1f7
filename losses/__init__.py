"""The training losses."""
