"""The data source `cqueue`, from which Spark makes readers and writers.

Spark makes a new data source for each step, in short-lived processes; so the data source holds options only.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from cqueue.spark.brief import brief
from cqueue.spark.options import read_options, write_options
from cqueue.spark.reader import Reader
from cqueue.spark.stream import LogStreamReader
from cqueue.spark.stream_writer import StreamWriter
from cqueue.spark.views import columns_of, spark_schema
from cqueue.spark.writer import Writer


class DefaultSource(DataSource):
    """Queues and logs as data frames: `spark.read.format("cqueue")`, `write`, `readStream`, `writeStream`.

    Options and columns: docs/reference/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "cqueue"

    @brief
    def schema(self) -> StructType:
        """Return the columns of the view, or those that option `columns` names.

        Raises:
            ConfigError: an option is wrong.
        """
        options = read_options(self.options)
        return spark_schema(options.view, options.columns)

    @brief
    def reader(self, schema: StructType) -> DataSourceReader:
        """Make a reader.

        Raises:
            ConfigError: an option is wrong, or the schema has other columns than the view.
        """
        options = read_options(self.options)
        return Reader(options, columns_of(options.view, schema, options.columns))

    @brief
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Make a writer that appends.

        Raises:
            ConfigError: an option or a column is wrong, or the mode is not "append".
            BadInput: the target does not exist, or takes no derived ids.
        """
        return Writer(schema, write_options(self.options, overwrite=overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Make a reader of a log as a stream; it checks options and schema when it plans."""
        return LogStreamReader(self.options, schema)

    @brief
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Make a writer that appends each batch once.

        Raises:
            ConfigError: an option or a column is wrong, or the output mode is "complete".
            BadInput: the target does not exist, or takes no derived ids.
        """
        return StreamWriter(schema, write_options(self.options, overwrite=overwrite))
