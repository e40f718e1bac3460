"""accuracy=questions: well-known question sets from packages, without a hub."""
