"""Handlers for messages: tasks, schedules, and the processes that run them.

An application defines tasks (`App`); a `Dispatcher` receives messages and runs their handlers; schedules send
messages at their times; `cqueue dispatch` runs a dispatcher as a service. Import the public names from
`cqueue`: this package imports nothing, so that a program loads only what it uses.
"""
