"""As many sleeping threads as the argument says, each seven functions deep, the first one included."""

import sys
import threading


def outer(ready, forever):
    middle(ready, forever)


def middle(ready, forever):
    inner(ready, forever)


def inner(ready, forever):
    ready.release()
    forever.acquire()


ready, forever = threading.Semaphore(0), threading.Lock()
forever.acquire()
# Of many threads, the default would take gigabytes of addresses.
threading.stack_size(256 * 1024)
for _ in range(int(sys.argv[1]) - 1):
    thread = threading.Thread(target=outer, args=(ready, forever))
    thread.daemon = True
    thread.start()
    ready.acquire()
print("ready")
sys.stdout.flush()
sys.stdin.read(1)
