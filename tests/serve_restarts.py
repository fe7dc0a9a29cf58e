#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""serve_restarts.py BRIM [RESTARTS]: restarts the server with SIGTERM on one inherited socket (systemd's LISTEN_FDS) while
clients send requests continuously. No request may fail, including the first one, which is sent before the first server
runs."""
import http.client
import os
import signal
import socket
import sys
import threading
import time

brim, restarts = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200
listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
port = listener.getsockname()[1]
ending = threading.Event()
answered, failed, lock = 0, [], threading.Lock()


def start():
    pid = os.fork()
    if pid == 0:
        os.dup2(listener.fileno(), 3)
        os.set_inheritable(3, True)
        os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
        os.execv(brim, ["brim", "serve", "--model", "vader", "--listen", "127.0.0.1:1", "--quiet"])
    return pid


def send_requests():
    global answered
    connection = None
    while not ending.is_set():
        try:
            connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/predict", '{"inputs":[["I love it"],["I hate it"]]}', {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = response.read()
            with lock:
                answered += 1
                if response.status != 200 or b"positive" not in body:
                    failed.append(f"{response.status} {body[:200]}")
            if response.getheader("Connection") == "close":
                connection = None
        except OSError as error:
            failed.append(repr(error))
            connection = None
        except http.client.HTTPException as error:
            failed.append(repr(error))
            connection = None


clients = [threading.Thread(target=send_requests) for _ in range(4)]
for client in clients:
    client.start()
server = start()
for restart in range(restarts):
    before = answered
    end = time.monotonic() + 60
    while answered < before + 20 and time.monotonic() < end:
        time.sleep(0.002)
    os.kill(server, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    if code != 0:
        failed.append(f"exit code {code}")
    server = start()
ending.set()
for client in clients:
    client.join()
os.kill(server, signal.SIGTERM)
os.waitpid(server, 0)
if failed or answered < 20 * restarts:
    sys.exit(f"serve_restarts: {len(failed)} of {answered} requests failed: {failed[:5]}")
print(f"serve_restarts: {restarts} restarts, {answered} requests, none failed")
