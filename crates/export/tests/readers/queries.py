"""Prints DuckDB's answers to the questions of examples/queries, as JSON by the name of the query: queries.py FOLDER"""

import json
import os
import sys

import duckdb

queries = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 4, "examples", "queries")
names = sorted(name for name in os.listdir(queries) if name[0].isdigit())
scripts = {}
for name in ("tables.sql", *names):
    with open(os.path.join(queries, name)) as file:
        scripts[name] = file.read()
# The queries expect the tables in the folder `tables` of the working folder.
os.chdir(os.path.dirname(sys.argv[1]))
database = duckdb.connect()
database.execute(scripts["tables.sql"])


def rows(sql):
    answer = database.execute(sql)
    columns = [column[0] for column in answer.description]
    return [dict(zip(columns, row)) for row in answer.fetchall()]


json.dump({name[3:-4]: rows(scripts[name]) for name in names} | {"runs": rows("from runs order by run")}, sys.stdout)
