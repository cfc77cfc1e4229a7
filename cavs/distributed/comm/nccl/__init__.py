"""The communicator of ranks that compute on GPUs and sum by NCCL."""
