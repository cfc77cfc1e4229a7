"""Cases of `benchmarks.models`: a module for each model of `models`, of the same name."""
