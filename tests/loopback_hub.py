# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face-compatible hub on the loopback interface for tests. It can cut connections, redirect, refuse, and send wrong files."""
import hashlib
import http.server
import json
import os
import pathlib
import random
import socket
import ssl
import threading
import time

COMMIT = "0123456789abcdef0123456789abcdef01234567"
rng = random.Random(7)


def git_sha(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


FILES = {
    "config.json": b'{"model_type": "bert"}',
    "tokenizer.json": rng.randbytes(40_000),
    "vocab.txt": b"",
    "1_Pooling/config.json": b"{}",
    "model.safetensors": rng.randbytes(3_000_000),
    "modeling.py": b"import os",
    "README.md": b"# model",
}
SOURCE = pathlib.Path(__file__).resolve().parents[1]
LARGE = {"model.safetensors"}  # stored with a SHA-256


def tiny_model(name):
    """Files of a model of tests/data by name, with a vocabulary of matching size."""
    files = {path.name: path.read_bytes() for path in (SOURCE / "tests/data/models" / name).iterdir() if path.is_file()}
    size = json.loads(files["config.json"])["vocab_size"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ada", "lives", "in", "london", "paris", "."]
    files["vocab.txt"] = ("\n".join(words + [f"word{i}" for i in range(size - len(words))]) + "\n").encode()
    files["tokenizer_config.json"] = b'{"tokenizer_class": "BertTokenizer", "do_lower_case": true}'
    return files


class Hub(http.server.BaseHTTPRequestHandler):
    """Behaves as `self.server.mode` says; `cut_after` closes connections after this many bytes of a large file; `sizes` are listed instead of the real
    sizes of files (None: no size)."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        server = self.server
        server.seen.append((self.path, dict(self.headers)))
        if "/api/models/" in self.path:
            return self.reply_listing()
        name = self.path.split("/resolve/")[-1].split("/", 1)[-1].split("?")[0]
        if server.redirect_to and name in LARGE and "signed" not in self.path:
            return self.reply(302, Location=f"{server.redirect_to}{self.path}?signed=1")
        data = server.files[name]
        if server.mode == "wrong" and name in LARGE:
            data = data[:1000] + b"?" + data[1001:]
        if server.mode == "long" and name in LARGE:
            data += bytes(5_000_000)
        first = 0
        if (wanted := self.headers.get("Range")) and server.mode != "no-range":
            first = int(wanted.removeprefix("bytes=").rstrip("-"))
            if first >= len(data):
                return self.reply(416)
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        body = data[first:]
        if name in LARGE and server.cut_after is not None:
            body, server.cut_after = body[:server.cut_after], None
            self.close_connection = True
        for at in range(0, len(body), 16384):
            self.wfile.write(body[at:at + 16384])
            if server.slow and name in LARGE:
                time.sleep(server.slow)
        self.wfile.flush()

    def do_HEAD(self):  # as huggingface_hub asks for the metadata of a file
        name = self.path.split("/resolve/")[-1].split("/", 1)[-1]
        data = self.server.files[name]
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest() if name in LARGE else git_sha(data)}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()

    def reply_listing(self):
        server = self.server
        if server.mode in ("401", "403", "404", "500"):
            return self.reply(int(server.mode), b"{}")
        if server.mode == "429":
            return self.reply(429, b"{}", Retry_After="100000")
        if server.busy > 0:
            server.busy -= 1
            return self.reply(429, b"{}", Retry_After="1")
        files = []
        for name, data in server.files.items():
            entry = {"rfilename": name, "size": server.sizes.get(name, len(data)), "blobId": git_sha(data)}
            if entry["size"] is None:
                del entry["size"]
            if name in LARGE:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            files.append(entry)
        if server.mode == "traversal":
            files.append({"rfilename": server.bad_name, "size": 1, "blobId": git_sha(b"x")})
        body = b"<html>" if server.mode == "html" else json.dumps({"id": "org/name", "sha": COMMIT, "siblings": files}).encode()
        self.reply(200, body)


class QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # clients that were killed


def start_hub(certificate=None):
    server = QuietServer(("127.0.0.1", 0), Hub)
    server.mode, server.cut_after, server.slow, server.redirect_to, server.bad_name = "", None, 0, None, "../x"
    server.busy, server.seen, server.files, server.sizes = 0, [], dict(FILES), {}
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def copy_bytes(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other side closed


class ConnectProxy(http.server.BaseHTTPRequestHandler):
    """Tunnels every CONNECT request to `self.server.target`."""

    def log_message(self, *_):
        pass

    def do_CONNECT(self):
        self.server.seen.append((self.path, dict(self.headers)))
        with socket.create_connection(self.server.target) as hub:
            self.send_response(200)
            self.end_headers()
            other = threading.Thread(target=copy_bytes, args=(hub, self.connection), daemon=True)
            other.start()
            copy_bytes(self.connection, hub)
            other.join()


def start_connect_proxy(target):
    server = QuietServer(("127.0.0.1", 0), ConnectProxy)
    server.target, server.seen = target, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def address(server, scheme="http"):
    return f"{scheme}://127.0.0.1:{server.server_address[1]}"


def environment(home, endpoint, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "BRIM_")) and "proxy" not in name.lower()}
    return {**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **more}
