"""An event loop whose time passes only when nothing else can happen, and its in-memory network."""
