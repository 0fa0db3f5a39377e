"""Writing: rows to messages."""
