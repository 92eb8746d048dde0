"""The default mode: one command starts every process on this machine and stops them all again."""
