"""`servescope export`: what a store holds, as Parquet for analysis or as OpenMetrics for a Prometheus."""
