"""Commands that check, convert and make data sets. No training run imports them."""
