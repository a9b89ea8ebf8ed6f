"""Which panel works on which engine: the dashboards over the captured `/metrics` of engines, release by release."""
