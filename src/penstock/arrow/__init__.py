"""Messages as Arrow tables, without Spark: for DuckDB, Polars, pandas and others.

    import penstock.arrow

    reader = penstock.arrow.read("orders")          # a pyarrow.RecordBatchReader
    table = reader.read_all()

`read` takes a topic, a store directory or an archive. `Producer.send_arrow` sends the rows of a
table, and `PullConsumer.poll_arrow` returns messages as a record batch. Needs the extra
``[arrow]``.
"""

from __future__ import annotations

from penstock.errors import MissingPackage

try:
    import numpy as _numpy  # noqa: F401
    import pyarrow as _pyarrow  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingPackage(
        f"penstock.arrow needs {error.name}, which is not installed",
        hint="pip install 'penstock[arrow]'",
    ) from error

from penstock.arrow.reading import read

__all__ = ["read"]
