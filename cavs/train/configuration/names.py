"""Environment variables that name a configuration store."""

STORE = "CAVS_CONFIG_STORE"  # the location of the store
TOKEN = "CAVS_CONFIG_TOKEN"  # the token of an HTTP store
