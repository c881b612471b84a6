"""The version, without asking the packaging machinery (which would cost more than all of `runai version --short`)."""

VERSION = "0.1.0"
