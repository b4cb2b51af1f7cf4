"""End-to-end equalities: operators in a chain, forward and backward, under every form in which a batch may come."""
