"""SQL92 filters over message properties."""
