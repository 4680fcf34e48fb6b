"""The version of cfp, as plans record it."""

VERSION = "0.1.0"
