"""Changes of a running training that all ranks make together."""
