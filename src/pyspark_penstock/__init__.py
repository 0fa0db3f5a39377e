"""Makes the format ``penstock`` known to Spark on installation; nothing more."""
