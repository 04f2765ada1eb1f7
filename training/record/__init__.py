"""The update of the weights: optimizers, learning rate, precision, averages."""
