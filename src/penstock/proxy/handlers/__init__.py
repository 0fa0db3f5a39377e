"""The calls of the API, one module for each family.

A handler takes the parts of the endpoint, the client that calls and a decoded message, and returns
a message. It knows neither gRPC nor sockets, so its rules run in virtual time, too.
"""
