"""Training one model on many workers."""
