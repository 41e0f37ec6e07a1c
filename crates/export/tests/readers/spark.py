"""Prints the contents of the tables of an export as Spark, only in this process, reads them, as JSON: spark.py FOLDER"""

import json
import os
import sys

from pyspark.sql import SparkSession

# Some folder names of the export are not ASCII. Java decodes them with the character set of the
# locale, which must therefore be UTF-8.
os.environ["LC_ALL"] = "C.UTF-8"

folder = sys.argv[1]
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
try:
    for table in os.listdir(folder):
        spark.read.parquet(f"{folder}/{table}").createOrReplaceTempView(table)
    calls = spark.sql("""
        select host, name, kind, count(*) as calls, sum(dur_ns) as ns, min(start_ns) as first,
               count(iteration) as in_iterations, sum(cast(failed as int)) as failed
        from calls group by all order by all""")
    rows = {table: spark.table(table).count() for table in sorted(os.listdir(folder))}
    json.dump({"calls": [row.asDict() for row in calls.collect()], "rows": rows}, sys.stdout)
finally:
    spark.stop()
