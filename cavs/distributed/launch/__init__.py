"""The launcher: it starts the ranks of a host, watches them, and ends what would hang."""
