"""Checks of an environment, one file a family; each is a pure function of an ``Inspection``."""
