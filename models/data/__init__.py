"""Data of models: recordings, how they were made, and their readers."""
