"""A training step on many ranks."""
