"""hardsight inside other libraries. Each module needs its extra, and only user code imports it."""
