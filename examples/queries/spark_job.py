"""Answers two questions about many runs on Spark, and writes them as Parquet.

    spark-submit spark_job.py TABLES ANSWERS

TABLES is what `tllmprof export --to parquet -o TABLES` wrote, on any file system that Spark reads. ANSWERS gets `slowest_ranks`, the
times of iterations by process, and `host_time`, where the time of the host goes by run.
"""
import sys

from pyspark.sql import SparkSession

QUESTIONS = {
    "slowest_ranks": """
        select run, host, rank, pid, count(*) as iterations, percentile(dur_ns, 0.5) / 1e6 as p50_ms,
               percentile(dur_ns, 0.99) / 1e6 as p99_ms
        from iterations where qualifies group by run, host, rank, pid""",
    "host_time": """
        select run, kind, cause, sum(time_ns) / 1e6 as ms
        from ledger where side = 'host' group by run, kind, cause""",
}


def main(tables, answers):
    spark = SparkSession.builder.appName("tllmprof").getOrCreate()
    try:
        for table in ("iterations", "ledger"):
            spark.read.parquet(f"{tables}/{table}").createOrReplaceTempView(table)
        for name, question in QUESTIONS.items():
            spark.sql(question).write.mode("overwrite").parquet(f"{answers}/{name}")
    finally:
        spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    main(*sys.argv[1:])
