"""From a traced model to an engine program."""
