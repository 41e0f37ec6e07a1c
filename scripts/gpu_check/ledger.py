"""Computes from the ledger in a report the share of the time that has no known cause: the rows whose cause ends in
"other" or "unknown"."""

# Maximum share of the host's time and of the GPU's time that may have no known cause.
MOST = {"host": 0.10, "gpu": 0.05}
NONE = ("other", "unknown")


def without_cause(rows):
    """Returns the summed share of the ledger's rows without a known cause."""
    return sum(row["share"] for row in rows if any(row["cause"].endswith(one) for one in NONE))


def judge(process):
    """Judges the ledger of a process. Returns (description, verdict): True if the shares without a cause are small
    enough, False if not, None if the record has no ledger."""
    ledger = process["ledger"]
    if not ledger or not ledger["host"]:
        return "none", None
    shares = {side: without_cause(ledger[side]) for side in MOST if ledger[side]}
    largest = ledger["host"][0]
    return (", ".join(f"{side} {share:.1%} without a cause" for side, share in shares.items()) +
            f"; most of the host's: {largest['cause']} {largest['share']:.0%}",
            all(share <= MOST[side] for side, share in shares.items()))
