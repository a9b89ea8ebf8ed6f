"""What one embeds in an engine, a router or an autoscaler."""
