"""What cannot be tried in minutes: clusters under faults, kills, bad bytes, memory over time."""
