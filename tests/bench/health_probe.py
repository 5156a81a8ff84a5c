"""Ask /health as an orchestrator does: a new connection each time, from a process that does nothing else.

    python tests/bench/health_probe.py 127.0.0.1 8000 30      # prints {"seen": [[status, seconds], …], …}

A blocking socket, so that no event loop of the probe's own is measured. Where it may, the probe raises its priority: on
a machine whose cores are all busy with the clients of the storm, a wait for a core would be measured otherwise. How
late the probe itself woke up is measured too (`late`): no server could have done better.
"""

import json
import os
import socket
import sys
import time

EVERY = 0.1  # seconds


def ask(host: str, port: int) -> tuple[int, float]:
    """(status, seconds) of one question, from the connection to the last byte."""
    begun = time.perf_counter()
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.sendall(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    return int(answer.split(None, 2)[1]), time.perf_counter() - begun


def main() -> None:
    host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    raised = raise_priority()
    seen, late = [], []
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        time.sleep(EVERY)
        late.append(time.perf_counter() - now - EVERY)
        seen.append(ask(host, port))
    print(json.dumps({"seen": seen, "late": late, "raised": raised}))


def raise_priority() -> bool:
    try:
        os.nice(-10)
    except PermissionError:
        return False
    return True


if __name__ == "__main__":
    main()
