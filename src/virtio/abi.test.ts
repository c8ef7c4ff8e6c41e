/** Every constant that is a matter of the specification, against the headers of the Linux kernel as gcc reads them. */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import * as balloon from './balloon/config.ts'
import * as blk from './blk/config.ts'
import { F_SIZE } from './console/config.ts'
import * as types from './device.ts'
import * as features from './features.ts'
import * as reg from './mmio/registers.ts'
import * as net from './net/config.ts'
import * as link from './net/link.ts'
import { INDIRECT, NEXT, WRITE } from './testing/driver.ts'
import * as packet from './vsock/packet.ts'

/** A C expression, and what we have for it. */
const FACTS: Record<string, number> = {
  ...Object.fromEntries(
    [
      ['MAGIC_VALUE', reg.MAGIC_VALUE],
      ['VERSION', reg.VERSION],
      ['DEVICE_ID', reg.DEVICE_ID],
      ['VENDOR_ID', reg.VENDOR_ID],
      ['DEVICE_FEATURES', reg.DEVICE_FEATURES],
      ['DEVICE_FEATURES_SEL', reg.DEVICE_FEATURES_SEL],
      ['DRIVER_FEATURES', reg.DRIVER_FEATURES],
      ['DRIVER_FEATURES_SEL', reg.DRIVER_FEATURES_SEL],
      ['QUEUE_SEL', reg.QUEUE_SEL],
      ['QUEUE_NUM_MAX', reg.QUEUE_NUM_MAX],
      ['QUEUE_NUM', reg.QUEUE_NUM],
      ['QUEUE_READY', reg.QUEUE_READY],
      ['QUEUE_NOTIFY', reg.QUEUE_NOTIFY],
      ['INTERRUPT_STATUS', reg.INTERRUPT_STATUS],
      ['INTERRUPT_ACK', reg.INTERRUPT_ACK],
      ['STATUS', reg.STATUS],
      ['QUEUE_DESC_LOW', reg.QUEUE_DESC_LOW],
      ['QUEUE_DESC_HIGH', reg.QUEUE_DESC_HIGH],
      ['QUEUE_AVAIL_LOW', reg.QUEUE_DRIVER_LOW],
      ['QUEUE_AVAIL_HIGH', reg.QUEUE_DRIVER_HIGH],
      ['QUEUE_USED_LOW', reg.QUEUE_DEVICE_LOW],
      ['QUEUE_USED_HIGH', reg.QUEUE_DEVICE_HIGH],
      ['SHM_SEL', reg.SHM_SEL],
      ['SHM_LEN_LOW', reg.SHM_LEN_LOW],
      ['SHM_LEN_HIGH', reg.SHM_LEN_HIGH],
      ['SHM_BASE_LOW', reg.SHM_BASE_LOW],
      ['SHM_BASE_HIGH', reg.SHM_BASE_HIGH],
      ['CONFIG_GENERATION', reg.CONFIG_GENERATION],
      ['CONFIG', reg.CONFIG],
      ['INT_VRING', reg.INTERRUPT_USED_BUFFER],
      ['INT_CONFIG', reg.INTERRUPT_CONFIG_CHANGE],
    ].map(([name, value]) => [`VIRTIO_MMIO_${name}`, value as number]),
  ),
  VIRTIO_CONFIG_S_ACKNOWLEDGE: reg.STATUS_ACKNOWLEDGE,
  VIRTIO_CONFIG_S_DRIVER: reg.STATUS_DRIVER,
  VIRTIO_CONFIG_S_DRIVER_OK: reg.STATUS_DRIVER_OK,
  VIRTIO_CONFIG_S_FEATURES_OK: reg.STATUS_FEATURES_OK,
  VIRTIO_CONFIG_S_NEEDS_RESET: reg.STATUS_NEEDS_RESET,
  VIRTIO_CONFIG_S_FAILED: reg.STATUS_FAILED,
  VIRTIO_F_VERSION_1: features.F_VERSION_1,
  VIRTIO_RING_F_INDIRECT_DESC: features.F_INDIRECT_DESC,
  VIRTIO_RING_F_EVENT_IDX: features.F_EVENT_IDX,
  VRING_DESC_F_NEXT: NEXT,
  VRING_DESC_F_WRITE: WRITE,
  VRING_DESC_F_INDIRECT: INDIRECT,
  'sizeof(struct vring_desc)': 16,
  'offsetof(struct vring_avail, ring)': 4,
  'offsetof(struct vring_used, ring)': 4,
  'sizeof(struct vring_used_elem)': 8,
  VIRTIO_ID_NET: types.TYPE_NET,
  VIRTIO_ID_BLOCK: types.TYPE_BLOCK,
  VIRTIO_ID_CONSOLE: types.TYPE_CONSOLE,
  VIRTIO_ID_RNG: types.TYPE_ENTROPY,
  VIRTIO_ID_BALLOON: types.TYPE_BALLOON,
  VIRTIO_ID_VSOCK: types.TYPE_VSOCK,
  VIRTIO_BLK_F_SEG_MAX: blk.F_SEG_MAX,
  VIRTIO_BLK_F_RO: blk.F_RO,
  VIRTIO_BLK_F_BLK_SIZE: blk.F_BLK_SIZE,
  VIRTIO_BLK_F_FLUSH: blk.F_FLUSH,
  VIRTIO_BLK_F_TOPOLOGY: blk.F_TOPOLOGY,
  VIRTIO_BLK_F_CONFIG_WCE: blk.F_CONFIG_WCE,
  VIRTIO_BLK_F_MQ: blk.F_MQ,
  VIRTIO_BLK_F_DISCARD: blk.F_DISCARD,
  VIRTIO_BLK_F_WRITE_ZEROES: blk.F_WRITE_ZEROES,
  'offsetof(struct virtio_blk_config, capacity)': blk.CONFIG_CAPACITY,
  'offsetof(struct virtio_blk_config, seg_max)': 12,
  'offsetof(struct virtio_blk_config, blk_size)': 20,
  'offsetof(struct virtio_blk_config, physical_block_exp)': 24,
  'offsetof(struct virtio_blk_config, min_io_size)': 26,
  'offsetof(struct virtio_blk_config, wce)': blk.CONFIG_WRITEBACK,
  'offsetof(struct virtio_blk_config, num_queues)': 34,
  'offsetof(struct virtio_blk_config, max_discard_sectors)': 36,
  'offsetof(struct virtio_blk_config, max_discard_seg)': 40,
  'offsetof(struct virtio_blk_config, discard_sector_alignment)': 44,
  'offsetof(struct virtio_blk_config, max_write_zeroes_sectors)': 48,
  'offsetof(struct virtio_blk_config, max_write_zeroes_seg)': 52,
  'offsetof(struct virtio_blk_config, write_zeroes_may_unmap)': 56,
  'sizeof(struct virtio_blk_outhdr)': 16,
  'sizeof(struct virtio_blk_discard_write_zeroes)': 16,
  VIRTIO_CONSOLE_F_SIZE: F_SIZE,
  'offsetof(struct virtio_console_config, max_nr_ports)': 4,
  'sizeof(struct virtio_console_config)': 12,
  VIRTIO_NET_F_CSUM: net.F_CSUM,
  VIRTIO_NET_F_GUEST_CSUM: net.F_GUEST_CSUM,
  VIRTIO_NET_F_MTU: net.F_MTU,
  VIRTIO_NET_F_MAC: net.F_MAC,
  VIRTIO_NET_F_GUEST_TSO4: net.F_GUEST_TSO4,
  VIRTIO_NET_F_GUEST_TSO6: net.F_GUEST_TSO6,
  VIRTIO_NET_F_HOST_TSO4: net.F_HOST_TSO4,
  VIRTIO_NET_F_HOST_TSO6: net.F_HOST_TSO6,
  VIRTIO_NET_F_MRG_RXBUF: net.F_MRG_RXBUF,
  VIRTIO_NET_F_STATUS: net.F_STATUS,
  'sizeof(struct virtio_net_hdr_mrg_rxbuf)': net.NET_HEADER,
  'offsetof(struct virtio_net_hdr_mrg_rxbuf, num_buffers)': 10,
  'offsetof(struct virtio_net_config, status)': net.CONFIG_STATUS,
  'offsetof(struct virtio_net_config, max_virtqueue_pairs)': 8,
  'offsetof(struct virtio_net_config, mtu)': 10,
  VIRTIO_NET_HDR_F_NEEDS_CSUM: link.FLAG_NEEDS_CSUM,
  VIRTIO_NET_HDR_F_DATA_VALID: link.FLAG_DATA_VALID,
  VIRTIO_NET_HDR_GSO_TCPV4: link.GSO_TCPV4,
  VIRTIO_NET_HDR_GSO_TCPV6: link.GSO_TCPV6,
  VIRTIO_NET_HDR_GSO_ECN: link.GSO_ECN,
  VIRTIO_BALLOON_F_STATS_VQ: balloon.F_STATS_VQ,
  VIRTIO_BALLOON_F_DEFLATE_ON_OOM: balloon.F_DEFLATE_ON_OOM,
  VIRTIO_BALLOON_F_REPORTING: balloon.F_REPORTING,
  'offsetof(struct virtio_balloon_config, num_pages)': balloon.CONFIG_NUM_PAGES,
  'offsetof(struct virtio_balloon_config, actual)': balloon.CONFIG_ACTUAL,
  'sizeof(struct virtio_balloon_stat)': 10,
  'sizeof(struct virtio_vsock_hdr)': packet.HEADER_SIZE,
  'offsetof(struct virtio_vsock_hdr, src_port)': 16,
  'offsetof(struct virtio_vsock_hdr, len)': 24,
  'offsetof(struct virtio_vsock_hdr, type)': 28,
  'offsetof(struct virtio_vsock_hdr, op)': 30,
  'offsetof(struct virtio_vsock_hdr, flags)': 32,
  'offsetof(struct virtio_vsock_hdr, buf_alloc)': 36,
  'offsetof(struct virtio_vsock_hdr, fwd_cnt)': 40,
  VIRTIO_VSOCK_OP_REQUEST: packet.OP_REQUEST,
  VIRTIO_VSOCK_OP_RESPONSE: packet.OP_RESPONSE,
  VIRTIO_VSOCK_OP_RST: packet.OP_RST,
  VIRTIO_VSOCK_OP_SHUTDOWN: packet.OP_SHUTDOWN,
  VIRTIO_VSOCK_OP_RW: packet.OP_RW,
  VIRTIO_VSOCK_OP_CREDIT_UPDATE: packet.OP_CREDIT_UPDATE,
  VIRTIO_VSOCK_OP_CREDIT_REQUEST: packet.OP_CREDIT_REQUEST,
  VIRTIO_VSOCK_SHUTDOWN_RCV: packet.NO_RECEIVE,
  VIRTIO_VSOCK_SHUTDOWN_SEND: packet.NO_SEND,
  VIRTIO_VSOCK_TYPE_STREAM: packet.TYPE_STREAM,
  VIRTIO_VSOCK_EVENT_TRANSPORT_RESET: 0,
}

const HEADERS = 'mmio config ring ids blk net console balloon vsock'.split(' ').map(name => `linux/virtio_${name}.h`)

it("agrees with the kernel's headers on every number", () => {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-abi-'))
  try {
    const lines = Object.keys(FACTS).map(fact => `printf("%s=%lld\\n", ${JSON.stringify(fact)}, (long long)(${fact}));`)
    const includes = ['stdio.h', 'stddef.h', ...HEADERS].map(header => `#include <${header}>\n`).join('')
    writeFileSync(join(folder, 'facts.c'), `${includes}int main(void) {\n${lines.join('\n')}\n}\n`)
    execFileSync('gcc', ['-o', join(folder, 'facts'), join(folder, 'facts.c')])
    const printed = execFileSync(join(folder, 'facts'), { encoding: 'utf8' }).trim().split('\n')
    const theirs = Object.fromEntries(
      printed.map(line => [line.slice(0, line.lastIndexOf('=')), Number(line.slice(line.lastIndexOf('=') + 1))]),
    )
    expect(theirs).toEqual(FACTS)
  } finally {
    rmSync(folder, { recursive: true })
  }
})
