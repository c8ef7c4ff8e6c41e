# Runs in a guest: opens COUNT connections to HOST:PORT, and only when all are open says something in each and hears it back.
import select, socket, sys

host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sockets = []
for _ in range(count):
    each = socket.socket()
    each.setblocking(False)
    each.connect_ex((host, port))
    sockets.append(each)
for each in sockets:
    # Writable: it is connected, or has failed.
    poll = select.poll()
    poll.register(each, select.POLLOUT)
    poll.poll(60_000)
    each.getpeername()
for i, each in enumerate(sockets):
    each.settimeout(60)
    each.sendall(f'I am number {i}'.encode())
    each.shutdown(socket.SHUT_WR)
good = 0
for i, each in enumerate(sockets):
    heard = b''
    while chunk := each.recv(100):
        heard += chunk
    good += heard == f'I am number {i}'.encode()
print(f'PARALLEL {good} of {count}')
