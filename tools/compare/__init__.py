"""What python -m tools.compare reads of runs, and how it shows them beside each other."""
