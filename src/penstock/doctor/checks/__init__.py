"""Each cause of "nothing arrives" as one pure function of gathered facts."""
