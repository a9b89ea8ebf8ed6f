"""The emulated stack as scrapers, routers and operators meet it over HTTP and ZeroMQ."""
