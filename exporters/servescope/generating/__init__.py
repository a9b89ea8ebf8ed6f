"""What compiles the catalog for Prometheus and Grafana: `servescope rules` and `servescope dashboards`.

The packages that write the files are `alerts/` and `dashboards/` of a checkout, and `servescope/_generators` of an
installed wheel. Nothing but these two commands imports them, under those names, so that an embedder's `alerts` or
`dashboards` is none of ours.
"""
