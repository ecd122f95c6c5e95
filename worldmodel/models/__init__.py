"""Networks and the values that they are built from."""
