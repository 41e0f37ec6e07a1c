"""Measures the share of a record's time without a cause: "other" and "unknown" in its ledger."""

# Maximum share of the host's time, and of the GPU's, without a known cause.
MOST = {"host": 0.10, "gpu": 0.05}
NONE = ("other", "unknown")


def without_cause(rows):
    """Returns the share of the rows that name no cause."""
    return sum(row["share"] for row in rows if any(row["cause"].endswith(one) for one in NONE))


def judge(process):
    """Returns (description, True if the share is small enough; None: the record has no ledger)."""
    ledger = process["ledger"]
    if not ledger or not ledger["host"]:
        return "none", None
    shares = {side: without_cause(ledger[side]) for side in MOST if ledger[side]}
    largest = ledger["host"][0]
    return (", ".join(f"{side} {share:.1%} without a cause" for side, share in shares.items()) +
            f"; most of the host's: {largest['cause']} {largest['share']:.0%}",
            all(share <= MOST[side] for side, share in shares.items()))
