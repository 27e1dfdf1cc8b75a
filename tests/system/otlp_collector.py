"""A collector of OTLP over HTTP in JSON, as far as a test needs one.

    with Collector() as collector:
        collector.url                # for OTEL_EXPORTER_OTLP_ENDPOINT
        collector.spans()            # all that came so far: Span(service, name, trace, span, parent, attributes, ...)
        collector.requests           # (path, headers) of each request
    Collector(status=503)            # refuses; with refuses=2 two requests only, with retry_after="1" or "date" (in four seconds) it says until when; Collector(hangs=True) takes connections and never answers; Collector(rejects=2): that many of each request
"""
import http.server
import json
import threading
import time
from collections import namedtuple

Span = namedtuple("Span", "service name trace span parent kind begin end status attributes")


def value_of(value):
    return int(value["intValue"]) if "intValue" in value else value["stringValue"]


def spans_in(text):
    """Of one request, or of a line of a file."""
    found = []
    for resource in json.loads(text)["resourceSpans"]:
        about = {one["key"]: value_of(one["value"]) for one in resource["resource"]["attributes"]}
        for scope in resource["scopeSpans"]:
            assert scope["scope"]["name"] == "mooncake"
            for one in scope["spans"]:
                assert len(one["traceId"]) == 32 and len(one["spanId"]) == 16 and len(one["parentSpanId"]) == 16
                attributes = {pair["key"]: value_of(pair["value"]) for pair in one["attributes"]}
                found.append(Span(about["service.name"], one["name"], one["traceId"], one["spanId"], one["parentSpanId"], one["kind"],
                                  int(one["startTimeUnixNano"]), int(one["endTimeUnixNano"]), one["status"], attributes))
    return found


class Collector:
    def __init__(self, status=200, hangs=False, rejects=0, refuses=None, retry_after=None):
        self.requests, self.texts, self.times = [], [], []
        self.ended = threading.Event()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                text = self.rfile.read(int(self.headers["Content-Length"]))
                if hangs:
                    collector.ended.wait()
                    return
                is_refused = status != 200 and (refuses is None or len(collector.requests) < refuses)
                collector.times.append(time.monotonic())
                collector.requests.append((self.path, dict(self.headers)))
                if not is_refused:
                    collector.texts.append(text)
                body = json.dumps({"partialSuccess": {"rejectedSpans": str(rejects), "errorMessage": "no"}} if rejects else {}).encode()
                self.send_response(status if is_refused else 200)
                if is_refused and retry_after:
                    self.send_header("Retry-After", self.date_time_string(time.time() + 4) if retry_after == "date" else retry_after)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *unused):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def spans(self):
        return [span for text in list(self.texts) for span in spans_in(text)]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()
