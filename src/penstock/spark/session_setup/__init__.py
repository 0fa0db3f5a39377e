"""Starting Spark: the tuned session, Java, registration of the format."""
