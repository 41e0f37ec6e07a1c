"""An example that is idle: a server that waits for requests of a client, which is a process of its own.

    tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- python3 socket_server.py 80    # 80 steps
"""

import selectors
import socket
import subprocess
import sys
import threading
import time

from gpu import Gpu

KERNEL_NS, PAUSE = 3_000_000, 0.010
STEPS = int(sys.argv[1]) if sys.argv[1:] else 30

# The client sends a request, waits for its answer, and pauses. The shell that starts the client ends at once, so that
# the client is no child of the server.
CLIENT = """
import socket, sys, time
server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for request in range(int(sys.argv[2])):
    time.sleep(float(sys.argv[3]))
    server.sendall(b"request")
    server.recv(64)
"""


def look_after_the_server():
    while True:
        time.sleep(0.5)


def take_request():
    selector.select()
    return client.recv(64)


listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
threading.Thread(target=look_after_the_server, daemon=True).start()
start = [sys.executable, "-c", CLIENT, str(port), str(STEPS), str(PAUSE)]
subprocess.run(["/bin/sh", "-c", '"$0" "$@" &', *start], check=True)
client, _ = listener.accept()
selector = selectors.DefaultSelector()
selector.register(client, selectors.EVENT_READ)
gpu = Gpu()
for step in range(STEPS):
    take_request()
    gpu.launch(KERNEL_NS)
    gpu.wait()
    client.sendall(b"answer")
