"""Measurements: read bandwidth, decode speed, the rival, reports."""
