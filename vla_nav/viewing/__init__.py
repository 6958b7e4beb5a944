"""A browser page of a data set or an evaluation run: `view_from` of `view_run.py`."""
