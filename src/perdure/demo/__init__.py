"""`perdure demo`: a shelf of texts through five stages, a worker killed in the middle, and the accounts of it.

Reading order: library (the pipeline), shelf (the documents), ledger (what was paid for), fleet (the workers),
play (what happens), accounts (whether it was as promised), grid, screen and report (how it is shown), show (from
beginning to end).
"""
