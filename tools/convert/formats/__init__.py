"""A module for each kind of label file."""
