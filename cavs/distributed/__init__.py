"""Training one model on many workers: strategies, communicators, and the trainer that uses them."""
