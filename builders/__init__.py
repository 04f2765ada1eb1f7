"""From the flags to the loaders, the model, the losses and the optimizer."""
