#!/usr/bin/env python3
"""Tests `brim pull` against a hub on the loopback interface: complete and interrupted downloads, wrong checksums, refusals, redirects,
unsafe names, a full disk, two processes at once, and that huggingface_hub reads the result (if it is installed).
  tests/pull.py BRIM [PYTHON_WITH_HUGGINGFACE_HUB]"""
import functools
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from loopback_hub import COMMIT, FILES, address, environment, rng, start_connect_proxy, start_hub, tiny_model

BRIM = os.path.abspath(sys.argv[1])
PYTHON = sys.argv[2] if len(sys.argv) > 2 else sys.executable
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


def limits_the_size_whatever_the_hub_lists(hub, home):
    got = pull(home, address(hub), "--max-size", "1MiB")
    require(got.returncode == 2 and "above the limit of 1.00 MiB" in got.stderr, got.stderr)
    blobs = home / "hub/models--org--name/blobs"
    hub.sizes = {"model.safetensors": 2**62, "tokenizer.json": 2**62}
    got = pull(home, address(hub))
    require(got.returncode == 2 and "above the limit of 20.0 GiB" in got.stderr, f"two sizes of 2^62: {got.returncode}: {got.stderr}")
    for size in (-1, 2**63, 2**64, 1.5, "9", 1e300):
        hub.sizes = {"model.safetensors": size}
        got = pull(home, address(hub))
        require(got.returncode == 3 and "has an invalid size" in got.stderr, f"size {size}: {got.returncode}: {got.stderr}")
    hub.sizes, hub.mode = {"model.safetensors": None}, "long"
    got = pull(home, address(hub), "--max-size", "1MiB")
    require(got.returncode == 2 and "above the limit of 1.00 MiB" in got.stderr, f"a file of unknown size: {got.returncode}: {got.stderr}")
    require(all(file.stat().st_size <= 2**20 for file in blobs.iterdir()), "no more was written")
    hub.sizes = {}
    got = pull(home, address(hub))
    require(got.returncode == 3 and "model.safetensors is longer than the 2.86 MiB that the hub lists" in got.stderr, f"{got.returncode}: {got.stderr}")
    require(all(file.stat().st_size < 2**20 for file in blobs.iterdir()), "nothing was kept")
    require_nothing(home)
    hub.sizes, hub.mode = {name: None for name in FILES}, ""
    got = pull(home, address(hub))
    require(got.returncode == 0, f"sizes are optional: {got.stderr}")
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


def make_certificate(home, name):
    """Creates home/hub.pem, key and certificate, and home/cert.pem."""
    certificate = home / "hub.pem"
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(certificate), "-out", str(home / "cert.pem"), "-days", "2",
                           "-subj", "/CN=test", "-addext", f"subjectAltName={name}"], capture_output=True)
    require(made.returncode == 0, made.stderr)
    certificate.write_bytes(certificate.read_bytes() + (home / "cert.pem").read_bytes())
    return certificate


def keeps_the_token_to_the_endpoint(hub, home):
    certificate = make_certificate(home, "IP:127.0.0.1")
    hub.mode = ""
    got = pull(home, address(hub), HF_TOKEN="hf_secret")
    require(got.returncode == 0 and not any("Authorization" in headers for _, headers in hub.seen), "no token without https")
    require(f"the access token is not sent to {address(hub)}, which is not https" in got.stderr, got.stderr)
    secure, other = start_hub(certificate), start_hub(certificate)
    trust = {"HF_TOKEN": "hf_secret", "SSL_CERT_FILE": str(home / "cert.pem")}
    secure.redirect_to = address(other, "https")
    with tempfile.TemporaryDirectory() as fresh:
        got = pull(fresh, address(secure, "https"), **trust)
        require(got.returncode == 0, got.stderr)
        require_complete(fresh)
    require("token" not in got.stderr, got.stderr)
    require(all(headers.get("Authorization") == "Bearer hf_secret" for _, headers in secure.seen), "the endpoint gets the token")
    require(pull(home, address(secure, "https"), **{**trust, "HF_TOKEN": " hf_secret\r\n"}).returncode == 0, "spaces and line ends of a token are dropped")
    require(secure.seen[-1][1].get("Authorization") == "Bearer hf_secret", f"a token with a line end: {secure.seen[-1]}")
    got = pull(home, address(secure, "https"), **{**trust, "HF_TOKEN": "hf\r\nX-Evil: 1"})
    require(got.returncode == 2 and "HF_TOKEN: not a token" in got.stderr, f"{got.returncode}: {got.stderr}")
    require(other.seen and not any("Authorization" in headers for _, headers in other.seen), "the redirect's target does not")
    secure.redirect_to = address(hub)
    with tempfile.TemporaryDirectory() as fresh:
        got = pull(fresh, address(secure, "https"), **trust)
        require(got.returncode != 0 and "refused a redirect from https" in got.stderr, got.stderr)
        began = time.monotonic()
        got = pull(fresh, address(secure, "https"), HF_TOKEN="hf_secret")
        require(got.returncode == 3 and "certificate" in got.stderr.lower(), f"an unknown certificate: {got.stderr}")
        got = pull(fresh, "http://hub.invalid")
        require(got.returncode == 3 and "resolve" in got.stderr, f"an unknown host: {got.stderr}")
        require(time.monotonic() - began < 8, "neither is retried")


def two_at_once_share_one_download(hub, home):
    hub.slow = 0.002
    with_environment = functools.partial(subprocess.Popen, [BRIM, "pull", "org/name", "-q"], env=environment(home, address(hub)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    processes = [with_environment() for _ in range(2)]
    require([p.wait(timeout=60) for p in processes] == [0, 0], "both succeed")
    require_complete(home)
    require(sum("safetensors" in path for path, _ in hub.seen) == 1, "one transfer")


def on_small_disk(hub, home, script):
    """Runs a shell script with a file system of 2 MiB at `home`; None without the rights to mount one."""
    got = subprocess.run(["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=2m tmpfs {home} || exit 99; {script}"],
                         env=environment(home, address(hub)), capture_output=True, text=True, timeout=120)
    return None if got.returncode == 99 or "unshare:" in got.stderr else got


def reports_a_full_disk(hub, home):
    got = on_small_disk(hub, home, f"exec {BRIM} pull org/name")
    if got is None:
        print("pull.py: full disk: not tested, mounting needs root")
        return
    require(got.returncode == 7 and "needed," in got.stderr, f"{got.returncode}: {got.stderr}")
    require(not any("resolve" in path for path, _ in hub.seen), "no file was requested")
    # A hub that does not list the size: the disk is full in the middle of a file. With more space, the download continues.
    hub.sizes = {"model.safetensors": None}
    with tempfile.TemporaryDirectory() as kept:
        got = on_small_disk(hub, home, f"{BRIM} pull org/name; echo $?; find {home} -path '*refs/main' -o -path '*snapshots/*'; echo end; "
                            f"mount -o remount,size=16m {home} && {BRIM} pull org/name && cp -a {home}/hub {kept}")
        require(got.returncode == 0 and "No space left on device" in got.stderr, f"{got.returncode}: {got.stderr}")
        require(got.stdout.startswith("7\nend\n"), f"exit code 7 without a ref or a link: {got.stdout}")
        require_complete(kept)
    ranges = [headers["Range"] for _, headers in hub.seen if "Range" in headers]
    require(len(ranges) == 1 and ranges[0] != "bytes=0-", f"continued: {ranges}")


def refuses_to_work_offline(hub, home):
    got = pull(home, address(hub), HF_HUB_OFFLINE="1")
    require(got.returncode == 2 and "HF_HUB_OFFLINE is set" in got.stderr and not hub.seen, got.stderr)


def commands_download_with_pull(hub, home):
    hub.files = tiny_model("bert_sequence")

    def score(*arguments, **more):
        return subprocess.run([BRIM, *arguments], input="ada lives in london\n", env=environment(home, address(hub), BRIM_MODELS=str(home), **more),
                              capture_output=True, text=True, timeout=120)

    missing = score("score", "-", "--model", "org/name")
    require(missing.returncode == 2 and "to download it: brim pull org/name" in missing.stderr and not hub.seen, missing.stderr)
    offline = score("score", "-", "--model", "org/name", "--pull", HF_HUB_OFFLINE="1")
    require(offline.returncode == 2 and "HF_HUB_OFFLINE is set" in offline.stderr and not hub.seen, offline.stderr)
    got = score("score", "-", "--model", "org/name", "--pull")
    require(got.returncode == 0 and len(got.stdout.splitlines()) == 2, got.stdout + got.stderr)
    requests = len(hub.seen)
    again = score("score", "-", "--model", "org/name", "--pull", "-q")
    require(again.returncode == 0 and again.stdout == got.stdout and len(hub.seen) == requests, "a cached model needs no network")
    require("org/name" in score("models", "list").stdout, "`models list` shows it")
    pinned = score("models", "show", "org/name@v2")
    require(pinned.returncode == 2 and "brim pull org/name@v2" in pinned.stderr, pinned.stderr)
    require(score("models", "show", "org/name@v2", "--pull").returncode == 0, "a revision")
    require(score("models", "show", f"org/name@{COMMIT}").returncode == 0, "a commit")
    served = score("serve", "--model", "org/other", "--pull", "--check", "--listen", "127.0.0.1:0")
    require(served.returncode == 0, served.stderr)


def uses_a_proxy(hub, home):
    got = pull(home, "http://hub.invalid", http_proxy=address(hub))
    require(got.returncode == 0, got.stderr)
    require(all(path.startswith("http://hub.invalid/") for path, _ in hub.seen), f"requests through the proxy: {hub.seen}")
    require(pull(home, "http://hub.invalid", http_proxy=address(hub), no_proxy="hub.invalid").returncode == 3, "no_proxy")
    got = pull(home, "http://127.evil.invalid", http_proxy=address(hub))
    require(got.returncode == 0 and hub.seen[-1][0].startswith("http://127.evil.invalid/"), f"not a loopback address: {got.stderr}")


def uses_a_proxy_for_https(_, home):
    certificate = make_certificate(home, "DNS:hub.invalid")
    hub = start_hub(certificate)
    proxy = start_connect_proxy(hub.server_address)
    settings = {"https_proxy": f"http://127.0.0.1:{proxy.server_address[1]}", "HF_TOKEN": "hf_secret", "SSL_CERT_FILE": str(certificate)}
    got = pull(home, "https://hub.invalid", **settings)
    require(got.returncode == 0, got.stderr)
    require_complete(home)
    require({target for target, _ in proxy.seen} == {"hub.invalid:443"}, f"tunnels: {proxy.seen}")
    require(not any("Authorization" in headers for _, headers in proxy.seen), "the proxy does not get the token")
    require(all(headers.get("Authorization") == "Bearer hf_secret" for _, headers in hub.seen), "the hub gets the token")


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
             starts_again_if_ranges_are_ignored, repairs_a_damaged_partial_file, rejects_wrong_checksums, limits_the_size_whatever_the_hub_lists, reports_refusals, refuses_unsafe_names,
             keeps_the_token_to_the_endpoint, two_at_once_share_one_download, reports_a_full_disk, refuses_to_work_offline, commands_download_with_pull, uses_a_proxy,
             uses_a_proxy_for_https, is_read_by_huggingface_hub_and_the_reverse):
    test(case)
print("pull.py: all passed")
