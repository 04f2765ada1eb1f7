"""What python -m data.check finds, and how it says so."""
