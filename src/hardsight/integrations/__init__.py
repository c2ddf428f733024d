"""hardsight inside other libraries; each module needs its extra, and nothing imports them but their users."""
