"""The version of EPL; `setup.py` reads it from here."""

VERSION = "0.6.0"
