"""Reading: options, planning, fetching, streams, store directories."""
