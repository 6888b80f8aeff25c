"""`perdure demo`: real documents through the real pipeline, a worker killed in the middle of a book, and the accounts.

Reading order: shelf (the documents, made by binding and pdf), server (where some are fetched), library (what the
workers run), turnstile (which pages are read), fleet (the workers), play (what happens), accounts (whether it was as
promised), findings (what can be searched), table, screen and report (how it is shown), show (from beginning to end).
"""
