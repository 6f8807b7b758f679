"""Files below one directory, through Hadoop's file systems, so that jobs can manage what Spark writes.

An archive may lie wherever Spark's own files may (`file:`, `hdfs:`, `s3a:`). Names are relative to the
directory, with slashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue.errors import BadInput, NotDone, OutcomeUnknown
from cqueue.spark.jobs.failures import SPARK_ERRORS, gist, reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAKEN = ("FileAlreadyExistsException", "FileNotFoundException")
REFUSED = "org.apache.hadoop.security.AccessControlException"
"""HDFS's, which looks before it renames. S3A's, which copies and deletes, may be denied in the middle."""
CONTROL = "_cqueue"
"""The directory of the jobs' own files; Spark and others leave out names that begin with `_`."""
_PATTERN = re.compile(r"[\\*?\[\]{}]")
"""Characters that stand for others where Spark's readers take a path."""


class Files:
    """One directory. Paths that methods take and give are relative to it.

    Raises:
        BadInput: the location is none of a file system that Spark knows here, or the session is a remote one
            (Spark Connect), which has no file system of its own.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        if not root:
            raise BadInput("the directory has no name")
        if not hasattr(spark, "_jvm"):
            raise BadInput("this job looks after files, and needs a Spark session that is not remote")
        self._spark = spark
        inside: Any = spark  # PySpark has no public way to its file systems
        self._jvm = inside._jvm  # noqa: SLF001 - as said
        self._hadoop = self._jvm.org.apache.hadoop.fs
        conf = inside._jsc.hadoopConfiguration()  # noqa: SLF001 - as said
        try:
            base = self._hadoop.Path(root)
            self._system = base.getFileSystem(conf)
            self.root = str(self._system.makeQualified(base).toString())
            self._context = self._hadoop.FileContext.getFileContext(self._system.getUri(), conf)
        except SPARK_ERRORS as exc:
            raise BadInput(f"{root} cannot be used: {gist(exc)}") from exc

    def full(self, path: str) -> str:
        """Return the path as Spark's writers take it."""
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def pattern(self, path: str) -> str:
        """Return the path as Spark's readers take it: a pattern that only this file or directory matches."""
        return _PATTERN.sub(r"\\\g<0>", self.full(path))

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory.

        Raises:
            NotDone: the file system does not say.
        """
        with reading(f"{self.full(path)} cannot be looked for", NotDone):
            return bool(self._system.exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in order; none if it does not exist.

        Raises:
            NotDone: the file system does not say.
        """
        if not self.exists(path):
            return []
        with reading(f"{self.full(path)} cannot be listed", NotDone):
            return sorted(str(each.getPath().getName()) for each in self._system.listStatus(self._path(path)))

    def read(self, path: str) -> str:
        """Read a text file, whole.

        Raises:
            BadInput: it cannot be read, or is damaged.
        """
        with reading(f"{self.full(path)} cannot be read"):
            stream = self._system.open(self._path(path))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def create(self, path: str, text: str) -> bool:
        """Write a text file that is there whole or not at all; False if there is one already.

        Raises:
            NotDone: it cannot be written.
            OutcomeUnknown: it may be there.
        """
        part = f"{path}.{self._jvm.java.util.UUID.randomUUID()}.part"
        try:
            with reading(f"{self.full(path)} cannot be written", NotDone):
                stream = self._system.create(self._path(part), True)
                try:
                    stream.write(bytearray(text.encode()))
                finally:
                    stream.close()
            return self._rename(part, path)
        finally:
            self.delete(part)  # what was not moved

    def move(self, source: str, target: str) -> bool:
        """Move a file or directory, which makes the directories above; False if another run was quicker.

        Then the target is there, or the source is not. HDFS renames without overwriting in one step; where a
        file system looks first by itself, two runs at the same moment may still meet.

        Raises:
            NotDone: it is where it was.
            OutcomeUnknown: it is in one of the two places.
        """
        with reading(f"{self.full(target)} cannot be written", NotDone):
            self._system.mkdirs(self._path(target).getParent())
        return self._rename(source, target)

    def _rename(self, source: str, target: str) -> bool:
        option = self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename")
        options = self._jvm.java.lang.reflect.Array.newInstance(option, 0)  # without OVERWRITE
        try:
            self._context.rename(self._path(source), self._path(target), options)
        except SPARK_ERRORS as exc:
            kind = exc.java_exception.getClass() if isinstance(exc, Py4JJavaError) else None
            if kind is not None and kind.getSimpleName() in TAKEN:
                return False
            if kind is not None and kind.getName() == REFUSED:
                raise NotDone(f"{self.full(target)} cannot be written: {gist(exc)}") from exc
            raise OutcomeUnknown(f"{self.full(target)} may be there or not: {gist(exc)}") from exc
        return True

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with all in it. What cannot be deleted stays."""
        with suppress(*SPARK_ERRORS):
            self._system.delete(self._path(path), True)

    def sha256(self, paths: Iterable[str]) -> dict[str, tuple[int, str]]:
        """Return (bytes, SHA-256 in hex) of files below 2 GiB, computed by tasks; without unreadable ones.

        Raises:
            NotDone: they cannot be read at all.
        """
        found = {self.full(path): path for path in paths}
        patterns = [self.pattern(path) for path in found.values()]
        if not found:
            return {}
        with reading(f"files in {self.root} cannot be read", NotDone):
            rows = (
                self._spark.read.format("binaryFile")
                .option("ignoreCorruptFiles", "true")
                .load(patterns)
                .select("path", "length", F.sha2("content", 256).alias("digest"))
                .collect()
            )
        return {found[_same_form(row.path, self.root)]: (row.length, row.digest) for row in rows}

    def relative(self, full: str) -> str:
        """Return the relative path of a file's `_metadata.file_path`, which is encoded as a URL is."""
        return unquote(_same_form(full, self.root)).removeprefix(self.root.rstrip("/") + "/")

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(self.full(path))


def _same_form(path: str, root: str) -> str:
    """Write `file:///a` as `file:/a` if the root is written so: Hadoop and Spark write both."""
    if path.startswith("file:///") and not root.startswith("file:///"):
        return "file:/" + path.removeprefix("file:///")
    return path
