"""Message handlers on executors: `consume`."""
