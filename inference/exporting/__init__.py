"""Export models to ONNX, load them, and check them against PyTorch."""
