"""The tests' own Kubernetes: built from Go modules, started and ended by the tests."""
