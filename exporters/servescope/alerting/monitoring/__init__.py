"""The alerts on what watches: telemetry, collector, translators, export, judge, clocks."""
