"""The broker's state: topics, groups, offsets, connected clients, queue locks."""
