"""Data-parallel training: communicators, synchronisers, and the trainer that uses them."""
