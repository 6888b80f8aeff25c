"""Events turned into log lines (and, later, metrics and streams)."""
