/** The loop of relay.c as ours has it: a poll set, calls through koffi, and nothing in between. `relay.process.ts PORT` */
import { signalEventFd } from '../../src/host/event-fd.ts'
import { IoVector } from '../../src/host/io-vector.ts'
import { EDGES, POLLIN, PollSet } from '../../src/host/poll.ts'
import { connectSocket, noDelay, openSocket, readSocketBytes, SOCK_STREAM, writeSocket } from '../../src/host/socket.ts'
import { parseAddress } from '../../src/net/addresses.ts'

const BELL = 3
const BACK = 4

const loopback = parseAddress('127.0.0.1')
const fd = openSocket(loopback, SOCK_STREAM)
connectSocket(fd, loopback, Number(process.argv[2]))
noDelay(fd)
const request = new IoVector(new Uint8Array(new SharedArrayBuffer(4096)))
request.push(0, 1)
const answer = new Uint8Array(2048)
const poll = new PollSet()
poll.add(BELL, POLLIN | EDGES, () => void writeSocket(fd, request))
poll.add(fd, POLLIN | EDGES, () => {
  if (readSocketBytes(fd, answer) > 0) signalEventFd(BACK)
})
for (;;) poll.wait(-1)
