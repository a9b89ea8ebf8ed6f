"""The alerts on what users notice: latencies, errors, answers, requests that nothing counts."""
