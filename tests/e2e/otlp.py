"""A receiver of spans as OpenTelemetry's exporters send them (OTLP over HTTP, protobuf), for tests."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.browsers.sites import serving


@dataclass(frozen=True, slots=True)
class Received:
    """One span as it arrived, and of which process."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]
    failed: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Traces:
    """Where it listens, and everything that came."""

    endpoint: str = ""
    spans: list[Received] = field(default_factory=list)
    raw: bytes = b""

    def named(self, name: str, trace_id: str) -> list[Received]:
        return [span for span in self.spans if span.name == name and span.trace_id == trace_id]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            except asyncio.IncompleteReadError:
                return
            fields = dict(line.split(": ", 1) for line in head.strip().split("\r\n")[1:])
            body = await reader.readexactly(int(fields["content-length"]))
            self._take(gzip.decompress(body) if fields.get("content-encoding") == "gzip" else body)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()

    def _take(self, body: bytes) -> None:
        self.raw += body
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            said = {each.key: each.value.string_value for each in resource.resource.attributes}
            for span in (each for scope in resource.scope_spans for each in scope.spans):
                values = {each.key: each.value for each in span.attributes}
                self.spans.append(
                    Received(
                        service=said["service.name"],
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        attributes={key: value.string_value or str(value.int_value) for key, value in values.items()},
                        failed=span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else "",
                        start_ns=span.start_time_unix_nano,
                        end_ns=span.end_time_unix_nano,
                    )
                )


@asynccontextmanager
async def receiving_traces() -> AsyncIterator[Traces]:
    traces = Traces()
    async with serving(traces.handle) as port:
        traces.endpoint = f"http://127.0.0.1:{port}"
        yield traces
