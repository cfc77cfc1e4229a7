"""cavs: a runtime for dynamic neural networks."""
