"""The application: tasks, their payloads and options, periodic tasks, and the outbox."""
