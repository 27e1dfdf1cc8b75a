"""What a console or a page of this release meets at a master of one before: a door to a real master that leaves out of its answers what came later."""
import http.server
import json
import threading

from cluster import request

LATER = ("eviction_ages", "evictions", "puts", "hints", "firm_pins", "hard_pin_bytes", "get_hit_bytes")  # of the overview and the history


class OlderMaster:
    def __init__(self, master, refused=()):
        """refused: paths that it does not know."""
        class Door(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = (404, b"") if self.path.split("?")[0] in refused else request(master.metrics_port, "GET", self.path)
                if self.path.startswith(("/api/v1/overview", "/api/v1/history")):
                    answer = json.loads(body)
                    for name in LATER:
                        answer.get("data", answer.get("series", {})).pop(name, None)
                    body = json.dumps(answer).encode()
                kinds = {"/": "text/html", "/app.js": "text/javascript", "/style.css": "text/css"}
                self.send_response(status)
                self.send_header("Content-Type", kinds.get(self.path, "application/json"))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *unused):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.metrics_port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.metrics_port}/"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
