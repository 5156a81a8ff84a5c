"""POST /v1/responses and its stored responses."""
