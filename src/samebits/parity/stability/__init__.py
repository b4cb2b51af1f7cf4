"""What keeps a training run alive, one room each: optimizer, gradients, buffers. A room is a folder with a contract."""
