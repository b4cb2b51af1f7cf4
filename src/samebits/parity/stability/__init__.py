"""What keeps a training run alive, one component each: optimizer, gradients, buffers. A component is a folder with a
contract."""
