"""Drivers run the protocol's generators: now on the calling thread, later also on an event loop."""
