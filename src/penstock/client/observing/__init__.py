"""What a client reports about itself: statistics, running info, traces."""
