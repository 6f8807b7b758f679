"""`cqueue.spark.register`: in a script's own Python, whatever `python3` is; and errors that are one line."""

import os
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import CaseInsensitiveDict

import cqueue
from cqueue.spark import brief, register
from cqueue.spark.source import DefaultSource

SCRIPT = """
import sys
import cqueue.spark
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
queue = spark.read.format("cqueue").option("queue", sys.argv[1])
try:
    queue.load()
except Exception as exc:
    print("without", "DATA_SOURCE_NOT_FOUND" in str(exc))
cqueue.spark.register(spark)
rows = spark.sql("select 'a' as body union all select 'b' as body")
rows.write.format("cqueue").mode("append").option("queue", sys.argv[1]).save()
print("read", sorted(bytes(row.body) for row in queue.load().collect()))
print("python", spark.range(1).select(udf(lambda _: sys.executable)("id")).first()[0])
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The commands of a Python that has no packages at all; one of them is `python3`."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, symlinks=True)
    return home / "bin"


def test_a_script_finds_the_data_source_whatever_python3_is(client, url, bare, new_name, tmp_path):
    """Without `register` Spark asks the first python3 and finds nothing; with it, it reads and writes."""
    queue = client.create_queue(new_name("script"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "PYSPARK_PYTHON"}}
    env |= {"PATH": f"{bare}{os.pathsep}{env['PATH']}", "CQUEUE_URL": url}
    done = subprocess.run(
        [sys.executable, str(script), queue.name],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["without True", "read [b'a', b'b']", f"python {sys.executable}"]


@pytest.mark.parametrize("name", ["python3", "nothing"])
def test_a_python_without_cqueue_is_refused_with_what_to_set(spark, bare, monkeypatch, name):
    """Before a query is planned, in one line."""
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare / name))
    with pytest.raises(cqueue.ConfigError, match="Set PYSPARK_PYTHON to a Python with cqueue") as caught:
        register(spark)
    assert str(bare / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "master", "taken"),
    [
        ({}, "local[2]", True),
        ({}, "spark://head:7077", False),
        ({"PYSPARK_PYTHON": sys.executable + "3"}, "local[2]", False),
    ],
    ids=["local", "cluster", "chosen"],
)
def test_a_python_that_somebody_chose_stays(monkeypatch, environ, master, taken):
    """Workers of a cluster have a Python of their own, which is not at this one's path."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr("cqueue.spark._check_python", lambda _: None)
    registered = []
    context = SimpleNamespace(pythonExec="theirs", master=master)
    sources = SimpleNamespace(register=registered.append)
    register(SimpleNamespace(sparkContext=context, dataSource=sources, createDataFrame=lambda *_: None))
    assert context.pythonExec == (sys.executable if taken else "theirs")
    assert registered == [DefaultSource]


def _read(spark, **options):
    spark.read.format("cqueue").options(**options).load().collect()


def _write(spark, **options):
    rows = spark.sql("select 'a' as body, 1 as number")
    rows.write.format("cqueue").mode("append").options(**options).save()


def _write_text(spark, **options):
    spark.sql("select 'a' as body").write.format("cqueue").mode("append").options(**options).save()


def test_a_thread_that_registers_can_write(spark):
    """Trap: Spark looks for the format of a write in its thread's active session, and a thread has none."""
    with ThreadPoolExecutor(1, initializer=register, initargs=(spark,)) as pool:
        written = pool.submit(_write_text, spark, queu="q")
        with pytest.raises(PySparkException, match="ConfigError: a write has no option 'queu'"):
            written.result()


def _read_stream(spark, **options):
    query = spark.readStream.format("cqueue").options(**options).load().writeStream.format("noop").start()
    query.awaitTermination()


@pytest.mark.parametrize(
    ("act", "options", "said"),
    [
        (_read, {"queu": "q"}, "ConfigError: a read has no option 'queu'. Did you mean 'queue'?"),
        (_read, {"queue": "nowhere"}, "QueueNotFound: there is no queue 'nowhere'"),
        (_write, {"queue": "nowhere"}, "ConfigError: a queue takes no column 'number'"),
        (_write_text, {"queue": "nowhere"}, "QueueNotFound: there is no queue 'nowhere'"),
        (_write_text, {"log": "nowhere", "topic": "t"}, "LogNotFound: there is no log 'nowhere'"),
        (_read_stream, {"log": "nowhere"}, "LogNotFound: there is no log 'nowhere'"),
        (_read_stream, {"queue": "q"}, "ConfigError: queue 'q' cannot be read as a stream"),
    ],
    ids=["option", "name", "column", "target", "log", "stream", "no-stream"],
)
def test_a_mistake_is_one_line_behind_sparks_prefix(spark, url, act, options, said):
    """Found while a query is planned, it comes by name, without tracebacks of Python or Java."""
    with pytest.raises(PySparkException) as caught:
        act(spark, url=url, **options)
    text = str(caught.value)
    assert f"cqueue.errors.{said}" in text.splitlines()[0]
    assert "Traceback" not in text
    assert "\tat " not in text


def test_only_workers_of_spark_leave_tracebacks_out(monkeypatch):
    """An error in the caller's own process changes nothing in that process."""
    monkeypatch.delenv(brief.HIDE, raising=False)
    with pytest.raises(cqueue.ConfigError):
        DefaultSource(CaseInsensitiveDict({"queu": "q"})).schema()
    assert brief.HIDE not in os.environ
