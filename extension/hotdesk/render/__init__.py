"""From models to what people see: `jobs` and `cluster` make `view`s; `html`, `terminal`, `plain` and `data` print them."""
