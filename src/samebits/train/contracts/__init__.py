"""What training promises, a component each: configuration, gradients, optimizer, buffers, a run as a whole."""
