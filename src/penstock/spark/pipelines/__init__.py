"""Pipelines that most teams need: archive, replay, repair of dead letters, a report.

Each pipeline is one function with keywords, exported by `penstock.spark`, and one verb of
``penstock spark``.
"""
