"""Runnable examples: `touchline example NAME`, or `make examples`. Each makes its data, joins it, checks the
result against plain Spark on a sample, and draws a picture."""
