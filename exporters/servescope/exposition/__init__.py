"""How figures leave a process: text, OpenMetrics, ASGI, WSGI, OTLP."""
