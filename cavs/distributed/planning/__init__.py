"""Planning of a training: strategy builders, the cost model, and the choice between strategies."""
