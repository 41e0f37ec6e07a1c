"""Prints the NVTX ranges of an nsys sqlite export, in order of their begin: domain, text, payload, begin, end."""

import sqlite3
import sys

PUSH_POP, START_END, DOMAIN_CREATE = 59, 60, 75

database = sqlite3.connect(sys.argv[1])
columns = {row[1] for row in database.execute("PRAGMA table_info(NVTX_EVENTS)")}
# If there were no NVTX events, the export has no table of them.
if columns:
    # The table has a column for each type of payload that occurs in the report.
    payloads = [name for name in ("uint64Value", "int64Value", "uint32Value", "int32Value") if name in columns]
    payload = f"coalesce({', '.join(payloads)}, NULL)" if payloads else "NULL"
    # The upper bits of globalTid identify the process. Each process numbers its domains from 1.
    domains = {
        (thread >> 24, number): name
        for thread, number, name in database.execute(
            f"SELECT globalTid, domainId, text FROM NVTX_EVENTS WHERE eventType = {DOMAIN_CREATE}"
        )
    }
    for thread, number, text, value, begin, end in database.execute(
        "SELECT globalTid, domainId, coalesce(text, (SELECT value FROM StringIds WHERE id = textId)),"
        f" {payload}, start, end FROM NVTX_EVENTS"
        f" WHERE eventType IN ({PUSH_POP}, {START_END}) ORDER BY start, end DESC"
    ):
        domain = domains.get((thread >> 24, number or 0), "")
        fields = (domain, text, value, begin, end)
        print(*("" if field is None else field for field in fields), sep="\t")
