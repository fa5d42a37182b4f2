"""SGLang as the other hosts and its launcher see it: `sglang.launch_server` of a stand-in, with two ranks or more.

As seen with 0.5.23: the ranks meet at `--dist-init-addr`; the head serves its API when all are there. A further rank
answers /health with 200 and everything else with 404, ignores SIGTERM, and ends with code 0 when the head tells it to;
when the head is gone without a word, it stays. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    answers: dict[str, Any]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        body = json.dumps(self.answers.get(path, "")).encode()
        self.send_response(200 if path in self.answers else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None: ...


def serve(host: str, port: int, answers: dict[str, Any]) -> None:
    class Mine(Handler):
        pass

    Mine.answers = answers
    server = ThreadingHTTPServer((host, port), Mine)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--host", "--served-model-name", "--dist-init-addr"):
        parser.add_argument(name)
    for name in ("--port", "--nnodes", "--node-rank"):
        parser.add_argument(name, type=int, default=0)
    args, _ = parser.parse_known_args()
    address, _, port = args.dist_init_addr.rpartition(":")
    if args.node_rank == 0:
        head(args, address, int(port))
    else:
        part(args, address, int(port))


def head(args: argparse.Namespace, address: str, port: int) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with socket.create_server((address, port)) as meeting:
        others = [meeting.accept()[0] for _ in range(args.nnodes - 1)]
        serve(args.host, args.port, {
            "/ready": "", "/health": "", "/v1/models": {"data": [{"id": args.served_model_name}]},
            "/v1/completions": {"choices": [{"text": " there"}]}, "/v1/loads": {"loads": []},
        })  # fmt: skip
        ended.wait()
        for other in others:
            other.sendall(b"end")


def part(args: argparse.Namespace, address: str, port: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            head = socket.create_connection((address, port))
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.01)
    serve(args.host, args.port, {"/health": "", "/health_generate": "", "/ping": ""})
    if head.recv(3) == b"end":
        sys.exit(0)
    signal.pause()


if __name__ == "__main__":
    main()
