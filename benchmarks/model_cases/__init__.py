"""Cases of `benchmarks.models`: modules of the names of models of `models`."""
