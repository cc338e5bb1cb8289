"""Runs the experiments of a comparison in order."""

from __future__ import annotations

from claimcheck._compare._lab import PREFIX, Lab

__all__ = ["PREFIX", "Lab"]
