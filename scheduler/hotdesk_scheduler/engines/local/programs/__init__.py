"""Programs that jobs run, not the scheduler: examples under the documented image names, and the commands first on a job's PATH."""
