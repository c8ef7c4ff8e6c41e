/** The layouts and numbers of src/host/socket.ts, poll.ts and tap.ts against the C headers of this host. */
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { EVENT_DATA, EVENT_SIZE } from './poll.ts'
import { MSGHDR, SOCKADDR_IN, SOCKADDR_IN6, socketAddress } from './socket.ts'
import { IFREQ, TUNSETIFF, TUNSETOFFLOAD } from './tap.ts'

const SOURCE = `
#include <stdio.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <net/if.h>
#include <linux/if_tun.h>
#define S(x) printf("%ld\\n", (long)(x));
int main(void) {
  S(sizeof(struct epoll_event)) S(offsetof(struct epoll_event, data))
  S(sizeof(struct sockaddr_in)) S(offsetof(struct sockaddr_in, sin_port)) S(offsetof(struct sockaddr_in, sin_addr))
  S(sizeof(struct sockaddr_in6)) S(offsetof(struct sockaddr_in6, sin6_port)) S(offsetof(struct sockaddr_in6, sin6_flowinfo))
  S(offsetof(struct sockaddr_in6, sin6_addr)) S(offsetof(struct sockaddr_in6, sin6_scope_id))
  S(sizeof(struct msghdr)) S(offsetof(struct msghdr, msg_iov)) S(offsetof(struct msghdr, msg_iovlen))
  S(sizeof(struct ifreq)) S(offsetof(struct ifreq, ifr_flags)) S(TUNSETIFF) S(TUNSETOFFLOAD)
}
`

it.skipIf(!existsSync('/usr/bin/gcc'))('has the layouts of the C headers', () => {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-abi-'))
  writeFileSync(join(folder, 'abi.c'), SOURCE)
  execFileSync('gcc', ['-o', join(folder, 'abi'), join(folder, 'abi.c')])
  const numbers = execFileSync(join(folder, 'abi'), { encoding: 'utf8' }).trim().split('\n').map(Number)
  rmSync(folder, { recursive: true })
  const { size, port, flow, address, scope } = SOCKADDR_IN6
  expect([
    ...[EVENT_SIZE, EVENT_DATA],
    ...[SOCKADDR_IN.size, SOCKADDR_IN.port, SOCKADDR_IN.address],
    ...[size, port, flow, address, scope],
    ...[MSGHDR.size, MSGHDR.iov, MSGHDR.iovlen],
    ...[IFREQ.size, IFREQ.flags, TUNSETIFF, TUNSETOFFLOAD],
  ]).toEqual(numbers)
})

it('writes addresses of both families', () => {
  const mapped = Uint8Array.from([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1])
  expect([...socketAddress(mapped, 0x1f90).subarray(0, 8)]).toEqual([2, 0, 0x1f, 0x90, 127, 0, 0, 1])
  const six = Uint8Array.from({ length: 16 }, (_, i) => i + 1)
  expect([...socketAddress(six, 80).subarray(8, 24)]).toEqual([...six])
})
