"""The update of the weights: optimizers, precision, averages."""
