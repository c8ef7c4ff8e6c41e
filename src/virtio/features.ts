/** Feature bits that do not belong to one device: VIRTIO 1.2, chapter 6. */
export const F_INDIRECT_DESC = 28
export const F_EVENT_IDX = 29
export const F_VERSION_1 = 32

/** What the transport and the queues offer for every device. */
export const TRANSPORT_FEATURES: readonly number[] = [F_INDIRECT_DESC, F_EVENT_IDX, F_VERSION_1]

/** The 32-bit word number `word` of a set of feature bits. */
export function featureWord(bits: readonly number[], word: number): number {
  let value = 0
  for (const bit of bits) if (bit >>> 5 === word) value |= 1 << (bit & 31)
  return value >>> 0
}
