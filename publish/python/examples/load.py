"""Requests to shop.py: four clients, for some seconds."""

import sys
import threading
import time
import urllib.request

ROUTES = ["/report", "/report", "/thumbnail", "/cart"]
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0


def client(route, times, end):
    while time.monotonic() < end:
        start = time.perf_counter()
        urllib.request.urlopen("http://127.0.0.1:8000" + route).read()
        times.append(time.perf_counter() - start)


times = {route: [] for route in sorted(set(ROUTES))}
end = time.monotonic() + SECONDS
clients = [threading.Thread(target=client, args=(route, times[route], end)) for route in ROUTES]
for each in clients:
    each.start()
for each in clients:
    each.join()
for route, taken in times.items():
    median = 1000 * sorted(taken)[len(taken) // 2]
    print(f"{route:11} {len(taken):5} requests, median {median:.1f} ms")
