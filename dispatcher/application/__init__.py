"""The application: tasks, their payloads and options, periodic tasks, and what sends their messages."""
