"""Graphs and samples from files, texts and structures of other libraries."""
