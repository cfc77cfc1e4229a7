"""Measurements of cavs against its rivals, on the same data, in the same minute."""
