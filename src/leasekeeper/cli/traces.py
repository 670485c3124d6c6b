"""Sends the spans of a command to an OTLP receiver, if the environment names one. The SDK is an extra (`tracing`)."""

import os
import sys
from typing import Final

import click

from leasekeeper.version import __version__

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def start(service: str) -> None:
    """Export spans in the background from now on, and the rest when the process ends.

    Does nothing without an endpoint, if traces are switched off, or if other code (opentelemetry-instrument, the
    program's own) has set up the SDK already. All of OpenTelemetry's own variables apply.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS) or _switched_off():
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        click.echo("leasekeeper: no traces are sent: install leasekeeper[tracing] with pip", err=True)
        return
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    own = {} if _named() else {"service.name": service}
    resource = Resource.create({**own, "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def _switched_off() -> bool:
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return disabled or os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() != "otlp"


def _named() -> bool:
    """Whether the environment names this service."""
    return "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")


def flush() -> None:
    """Send what is left now: for a process that ends without its exit handlers."""
    if "opentelemetry.sdk.trace" in sys.modules:
        from opentelemetry import trace

        getattr(trace.get_tracer_provider(), "force_flush", bool)()
