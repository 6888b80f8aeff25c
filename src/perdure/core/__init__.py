"""Pure rules, no input or output: model, backoff, outcome, fingerprint, clock, events."""
