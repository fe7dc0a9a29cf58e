#!/usr/bin/env python3
"""Tests `brim pull` against a hub on the loopback interface: complete and interrupted downloads, wrong checksums, refusals, redirects,
unsafe names, a full disk, two processes at once, and that huggingface_hub reads the result (if it is installed).
  tests/pull.py BRIM [PYTHON_WITH_HUGGINGFACE_HUB]"""
import functools
import hashlib
import http.server
import json
import os
import pathlib
import random
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time

BRIM = os.path.abspath(sys.argv[1])
PYTHON = sys.argv[2] if len(sys.argv) > 2 else sys.executable
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
LARGE = {"model.safetensors"}


class Hub(http.server.BaseHTTPRequestHandler):
    """Behaves as `self.server.mode` says; `cut_after` closes connections after so many bytes of a large file."""
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
            entry = {"rfilename": name, "size": len(data), "blobId": git_sha(data)}
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
    server.busy, server.seen, server.files = 0, [], dict(FILES)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def address(server, scheme="http"):
    return f"{scheme}://127.0.0.1:{server.server_address[1]}"


def environment(home, endpoint, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "BRIM_")) and "proxy" not in name.lower()}
    return {**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **more}


def pull(home, endpoint, *arguments, **more):
    return subprocess.run([BRIM, "pull", "org/name", *arguments], env=environment(home, endpoint, **more), capture_output=True, text=True, timeout=120)


def snapshot(home):
    return pathlib.Path(home) / "hub/models--org--name/snapshots" / COMMIT


def require(condition, text):
    if not condition:
        sys.exit(f"pull.py: FAILED: {text}")


def require_complete(home):
    wanted = {name for name in FILES if name not in ("modeling.py", "README.md")}
    found = {str(p.relative_to(snapshot(home))) for p in snapshot(home).rglob("*") if not p.is_dir()}
    require(found == wanted, f"files {found}")
    for name in wanted:
        require((snapshot(home) / name).read_bytes() == FILES[name], f"content of {name}")
        require((snapshot(home) / name).is_symlink(), f"{name} is a link")
    require((pathlib.Path(home) / "hub/models--org--name/refs/main").read_text() == COMMIT, "refs/main")
    require(not list((pathlib.Path(home) / "hub/models--org--name/blobs").glob("*.incomplete")), "no incomplete blob is left")


def require_nothing(home):
    require(not (pathlib.Path(home) / "hub/models--org--name/refs/main").exists(), "no ref after a failure")


def test(function):
    with tempfile.TemporaryDirectory() as home:
        hub = start_hub()
        function(hub, pathlib.Path(home))
        hub.shutdown()
        hub.server_close()
    print(f"pull.py: {function.__name__.replace('_', ' ')}", flush=True)


def downloads_what_brim_reads(hub, home):
    got = pull(home, address(hub))
    require(got.returncode == 0, got.stderr)
    require(got.stdout.strip() == str(snapshot(home)), f"stdout is the directory: {got.stdout}")
    require_complete(home)
    before = len(hub.seen)
    again = pull(home, address(hub))
    require(again.returncode == 0 and len(hub.seen) == before + 1, "a second call downloads nothing")
    require("0 B downloaded" in again.stderr, again.stderr)


def continues_after_broken_connections(hub, home):
    for cut in (0, 1, 65_536, 2_999_999):
        hub.cut_after = cut
        with tempfile.TemporaryDirectory() as other:
            got = pull(other, address(hub))
            require(got.returncode == 0, got.stderr)
            require_complete(other)
    ranges = [headers["Range"] for _, headers in hub.seen if "Range" in headers]
    require(len(ranges) == 3, f"continued where the connection broke: {ranges}")


def continues_after_being_killed(hub, home):
    hub.slow = 0.005
    blob = home / "hub/models--org--name/blobs" / (hashlib.sha256(FILES["model.safetensors"]).hexdigest() + ".incomplete")
    for target in sorted(rng.randrange(len(FILES["model.safetensors"])) for _ in range(20)):
        process = subprocess.Popen([BRIM, "pull", "org/name", "-q"], env=environment(home, address(hub)), stderr=subprocess.PIPE)
        while process.poll() is None and not (blob.exists() and blob.stat().st_size >= target):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        require(not (snapshot(home) / "model.safetensors").exists(), "no link to an incomplete file")
        require_nothing(home)
    hub.slow = 0
    got = pull(home, address(hub))
    require(got.returncode == 0, got.stderr)
    require_complete(home)
    sent = [headers.get("Range") for path, headers in hub.seen if path.endswith("model.safetensors")]
    require(len([r for r in sent if r]) >= 15, f"downloads were continued: {sent}")


def stops_on_interrupt(hub, home):
    hub.slow = 0.05
    process = subprocess.Popen([BRIM, "pull", "org/name", "-q"], env=environment(home, address(hub)), stderr=subprocess.PIPE, text=True)
    while not any("safetensors" in path for path, _ in hub.seen):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    require(process.returncode == 130 and "interrupted" in errors, f"{process.returncode}: {errors}")
    require_nothing(home)


def starts_again_if_ranges_are_ignored(hub, home):
    hub.mode, hub.cut_after = "no-range", 100_000
    got = pull(home, address(hub))
    require(got.returncode == 0, got.stderr)
    require_complete(home)


def repairs_a_damaged_partial_file(hub, home):
    blobs = home / "hub/models--org--name/blobs"
    blobs.mkdir(parents=True)
    (blobs / (hashlib.sha256(FILES["model.safetensors"]).hexdigest() + ".incomplete")).write_bytes(b"x" * 1000)
    got = pull(home, address(hub))
    require(got.returncode == 0, got.stderr)
    require_complete(home)


def rejects_wrong_checksums(hub, home):
    hub.mode = "wrong"
    got = pull(home, address(hub))
    require(got.returncode != 0 and "model.safetensors differs from its checksum" in got.stderr, got.stderr)
    require(not (snapshot(home) / "model.safetensors").exists(), "a wrong file is not linked")
    require_nothing(home)
    hub.mode = ""
    require(pull(home, address(hub)).returncode == 0, "and can be downloaded later")
    require_complete(home)


def reports_refusals(hub, home):
    for mode, text in (("401", "not found or no access"), ("403", "access denied"), ("404", "not found (HTTP 404)"),
                       ("429", "rate limit"), ("html", "JSON")):
        hub.mode = mode
        got = pull(home, address(hub))
        require(got.returncode in (2, 3) and text in got.stderr, f"{mode}: {got.returncode}: {got.stderr}")
    hub.mode, hub.busy = "", 2
    require(pull(home, address(hub)).returncode == 0, "a short Retry-After is waited for")


def refuses_unsafe_names(hub, home):
    hub.mode = "traversal"
    for name in ("../x", "/tmp/x", "a/../../x", "a\0b", "a\\b", ""):
        hub.bad_name = name
        got = pull(home, address(hub))
        require(got.returncode != 0 and "unsafe file name" in got.stderr, f"{name!r}: {got.stderr}")
    require(not list(home.rglob("x")), "nothing was written")
    got = subprocess.run([BRIM, "pull", "../x"], env=environment(home, address(hub)), capture_output=True, text=True)
    require(got.returncode == 2 and "invalid repository name" in got.stderr, got.stderr)


def keeps_the_token_to_the_endpoint(hub, home):
    certificate = home / "hub.pem"
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(certificate), "-out", str(home / "cert.pem"), "-days", "2",
                           "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], capture_output=True)
    require(made.returncode == 0, made.stderr)
    certificate.write_bytes(certificate.read_bytes() + (home / "cert.pem").read_bytes())
    hub.mode = ""
    got = pull(home, address(hub), HF_TOKEN="hf_secret")
    require(got.returncode == 0 and not any("Authorization" in headers for _, headers in hub.seen), "no token without https")
    secure, other = start_hub(certificate), start_hub(certificate)
    trust = {"HF_TOKEN": "hf_secret", "SSL_CERT_FILE": str(home / "cert.pem")}
    secure.redirect_to = address(other, "https")
    with tempfile.TemporaryDirectory() as fresh:
        got = pull(fresh, address(secure, "https"), **trust)
        require(got.returncode == 0, got.stderr)
        require_complete(fresh)
    require(all(headers.get("Authorization") == "Bearer hf_secret" for _, headers in secure.seen), "the endpoint gets the token")
    require(other.seen and not any("Authorization" in headers for _, headers in other.seen), "the redirect's target does not")
    secure.redirect_to = address(hub)
    with tempfile.TemporaryDirectory() as fresh:
        got = pull(fresh, address(secure, "https"), **trust)
        require(got.returncode != 0 and "refused a redirect from https" in got.stderr, got.stderr)
        got = pull(fresh, address(secure, "https"), HF_TOKEN="hf_secret")
        require(got.returncode != 0 and "certificate" in got.stderr.lower(), f"an unknown certificate: {got.stderr}")


def two_at_once_share_one_download(hub, home):
    hub.slow = 0.002
    with_environment = functools.partial(subprocess.Popen, [BRIM, "pull", "org/name", "-q"], env=environment(home, address(hub)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    processes = [with_environment() for _ in range(2)]
    require([p.wait(timeout=60) for p in processes] == [0, 0], "both succeed")
    require_complete(home)
    require(sum("safetensors" in path for path, _ in hub.seen) == 1, "one transfer")


def reports_a_full_disk(hub, home):
    got = pull(home, address(hub), "--max-size", "1MiB")
    require(got.returncode == 2 and "above the limit of 1.00 MiB" in got.stderr, got.stderr)
    mount = subprocess.run(["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=2m tmpfs {home} && exec {BRIM} pull org/name"],
                           env=environment(home, address(hub)), capture_output=True, text=True)
    if "unshare" in mount.stderr or "mount:" in mount.stderr:
        print("pull.py: full disk: not tested, mounting needs root")
        return
    require(mount.returncode == 6 or "needed," in mount.stderr, f"{mount.returncode}: {mount.stderr}")


def refuses_to_work_offline(hub, home):
    got = pull(home, address(hub), HF_HUB_OFFLINE="1")
    require(got.returncode == 2 and "HF_HUB_OFFLINE is set" in got.stderr and not hub.seen, got.stderr)


def is_read_by_huggingface_hub_and_the_reverse(hub, home):
    if subprocess.run([PYTHON, "-c", "import huggingface_hub"], capture_output=True).returncode:
        print("pull.py: huggingface_hub is not installed, skipped")
        return
    require(pull(home, address(hub)).returncode == 0, "pull")
    script = "import huggingface_hub as h; print(h.hf_hub_download('org/name', 'model.safetensors')); print(h.snapshot_download('org/name'))"
    got = subprocess.run([PYTHON, "-c", script], env=environment(home, address(hub), HF_HUB_OFFLINE="1"), capture_output=True, text=True)
    require(got.returncode == 0 and got.stdout.split()[1] == str(snapshot(home)), got.stdout + got.stderr)
    with tempfile.TemporaryDirectory() as other:
        script = f"import huggingface_hub as h; [h.hf_hub_download('org/name', name) for name in {[n for n in FILES if n not in ('modeling.py', 'README.md')]}]"
        got = subprocess.run([PYTHON, "-c", script], env=environment(other, address(hub)), capture_output=True, text=True)
        require(got.returncode == 0, got.stderr)
        got = pull(other, address(hub))
        require(got.returncode == 0 and "0 B downloaded" in got.stderr, got.stderr)
        require_complete(other)


for case in (downloads_what_brim_reads, continues_after_broken_connections, continues_after_being_killed, stops_on_interrupt,
             starts_again_if_ranges_are_ignored, repairs_a_damaged_partial_file, rejects_wrong_checksums, reports_refusals, refuses_unsafe_names,
             keeps_the_token_to_the_endpoint, two_at_once_share_one_download, reports_a_full_disk, refuses_to_work_offline,
             is_read_by_huggingface_hub_and_the_reverse):
    test(case)
print("pull.py: all passed")
