"""Ranks: which of them holds, sends and adds what, and the proofs that this reaches no bit."""
