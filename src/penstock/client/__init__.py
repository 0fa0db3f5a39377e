"""The client. Internal: the public names are those of `penstock` and `penstock.aio`.

session/    one connection to a cluster for each client id, and the loop thread it runs on
producing/  from a message to its receipt
consuming/  from a pull to the handler and the committed offset
observing/  traces, statistics and running info

`blocking` and `nonblocking` are the two faces over the same parts; `facade` holds what they share.
"""
