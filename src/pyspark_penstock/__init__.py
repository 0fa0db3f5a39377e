"""Makes the format ``penstock`` known to Spark on installation; nothing more.

Spark imports every top-level module named ``pyspark_*`` and asks it for ``DefaultSource``. A module
that fails there would hide the others, so nothing is imported before it is asked for.
"""


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        try:
            from penstock.spark.source.data_source import PenstockSource
        except ImportError as error:
            # Without pyarrow, say. To Spark this must look like a module that has no source.
            raise AttributeError(f"format penstock cannot be loaded: {error}") from error
        return PenstockSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
