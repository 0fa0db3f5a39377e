"""One connection to a cluster per client id: routes, heartbeats, requests and answers."""
