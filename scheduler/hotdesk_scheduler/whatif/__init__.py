"""`simulate --jobs`: a day of jobs played on a cluster as it is, and as it would be (an admin's "what if team-a had 6?")."""
