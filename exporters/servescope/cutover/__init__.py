"""Whether a cutover from one stack to another is healthy: a pure function of the past, a plan and a journal."""
