"""What every package stands on: clocks, services, settings, logs, state files and threads."""
