"""For users' tests: a cluster inside the test process, in real or in virtual time.

Import from these modules; the sub-packages are internal:

    embedded      a name server and brokers in this process
    plugin        the same as pytest fixtures, registered when Penstock is installed
    clock         the virtual clock of an embedded cluster
    eventually    wait for a state, never for a duration
"""
