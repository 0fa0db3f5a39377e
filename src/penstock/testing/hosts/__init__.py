"""Where an embedded cluster and its clients run: its servers, and the loops they run on."""
