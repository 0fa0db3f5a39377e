"""One HTML page about a cluster: its numbers, where they come from, and how they are drawn."""
