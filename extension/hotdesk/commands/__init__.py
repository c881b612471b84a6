"""The one command table: `table` (verbs and flags), `parse` (words in, Typed out), `perform` (Typed in, answer out), help, completion."""
