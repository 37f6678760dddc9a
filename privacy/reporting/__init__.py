"""What `covey privacy` reads and shows: one ledger, a fleet of them, and what servers received.

Reading comes first (`ledger_view`, `receipts_file`), then judging (`spending`, `reconciliation`), then showing:
each command has one file that turns frozen results into text and JSON, and `page` makes the report of a fleet.
Nothing here writes to a ledger.
"""
