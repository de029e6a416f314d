"""envguard: knows what a Python environment should hold, what it does hold, and the command that repairs it."""
