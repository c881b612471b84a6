"""REST `/v1` over the service: tornado handlers that translate, authenticate and stream; they decide nothing."""
