"""What the operator's commands do: check, sweep, collect garbage, redrive."""
