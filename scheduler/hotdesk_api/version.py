"""The version, without asking the packaging machinery: that is slow, and knows nothing of a checkout that is only on the path."""

VERSION = "0.1.0"
