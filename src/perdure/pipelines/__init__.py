"""Ready-made pipelines and the stages they are made of."""
