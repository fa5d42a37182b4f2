"""What watches servers and tells others: metrics for Prometheus, spans for OpenTelemetry, hooks.

Each is a listener of journals, and some are observers of requests as well; none can change or hold up what it watches.

- `lifecycle.operate.metrics.Metrics` (`pip install 'stoker[metrics]'`)
- `lifecycle.operate.tracing.Tracing` (`pip install 'stoker[otel]'`)
- `lifecycle.operate.hooks.Hooks`

Logs need nothing of this package: see `lifecycle.logs`.
"""
