"""Who runs the protocol's generators: the calling thread, and later an event loop."""
