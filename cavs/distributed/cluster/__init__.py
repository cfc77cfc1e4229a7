"""The resource specification: machines, their devices, and the network between them."""
