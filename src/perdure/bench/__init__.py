"""`perdure bench`: how fast it is here, beside the bare driver doing the same statements in the same run.

Machines differ and drift; what says something is the ratio of two numbers of one run. Reading order: load (what is
worked on), place (where), ours (through the whole engine), bare (the bound), report (all of it, and how it is shown).
"""
