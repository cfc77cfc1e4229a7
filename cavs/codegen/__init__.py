"""Kernels from expressions."""
