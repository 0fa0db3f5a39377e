"""Checks that take longer than minutes: clusters under faults, kills, fuzzing, memory."""
