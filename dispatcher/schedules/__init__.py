"""Schedules: triggers, their definitions, where they are stored, and the thread that watches them."""
