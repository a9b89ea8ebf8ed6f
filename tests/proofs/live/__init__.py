"""Every alert in a running stack: its fault is made, and what reaches which receiver, and when, is written down."""
