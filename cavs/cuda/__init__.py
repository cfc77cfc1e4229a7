"""The CUDA engine's side in Python."""
