"""The communicator of ranks that are MPI processes."""
