"""What teams build on every queue sooner or later: archive, replay, dead letters, a report.

Each pipeline is one function with keywords, exported by `penstock.spark`, and one verb of
``penstock spark``.
"""
