"""Prints the answers of examples/queries/spark_job.py on Spark, only in this process, as JSON: spark_job.py FOLDER"""

import json
import os
import subprocess
import sys

from pyspark.sql import SparkSession

# Some folder names of the export are not ASCII. Java decodes them with the character set of the
# locale, which must therefore be UTF-8.
os.environ["LC_ALL"] = "C.UTF-8"

folder = sys.argv[1]
answers = f"{os.path.dirname(folder)}/answers"
job = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 4, "examples", "queries", "spark_job.py")
options = " ".join(f"--conf {option}" for option in ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1"))
environment = dict(os.environ, PYSPARK_SUBMIT_ARGS=f"--master local[1] {options} pyspark-shell")
subprocess.run([sys.executable, "-B", job, folder, answers], env=environment, check=True, stdout=sys.stderr)
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
try:
    names = sorted(os.listdir(answers))
    json.dump({name: [row.asDict() for row in spark.read.parquet(f"{answers}/{name}").collect()] for name in names}, sys.stdout)
finally:
    spark.stop()
