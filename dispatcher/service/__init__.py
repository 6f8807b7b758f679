"""The service: the daemon, its worker processes, health, metrics, and the list of workers."""
