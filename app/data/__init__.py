"""What pages read: figures, alerts, silences, and what users are promised. No widgets here."""
