"""What every part of a client runs on: clock, catalog, driver of protocol generators, batching, wake-ups."""
