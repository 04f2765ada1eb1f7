"""Export models to ONNX and torch.export, load them, and check them against PyTorch."""
