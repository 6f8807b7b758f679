"""Execution: poll queues, hand messages to threads or the event loop, run handlers, extend leases, settle."""
