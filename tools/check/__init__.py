"""What python -m tools.check finds, and how it says so."""
