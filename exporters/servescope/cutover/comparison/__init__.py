"""One metric of v2 beside v1: noise, clusters, outliers, and its path through a stage."""
