"""The memory of the DyNet runners. Without DyNet, which is configured before it is imported."""

# Memory for forward, backward, parameters and scratch, in MiB: with automatic batching DyNet
# cannot extend them. Pages are taken as they are touched.
MEMORY = "4096,4096,1024,512"
