"""The beginning of a training on many ranks, and its continuation when a rank dies."""
