"""Frechet distances as training losses and as plain metrics."""
