"""Typed facts that cross floors, and how they are written: verdicts, findings, reports."""
