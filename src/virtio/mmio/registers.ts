/** The virtio-mmio register map as the guest sees it, and status bits: VIRTIO 1.2, sections 4.2.2 and 2.1. */
export const MAGIC_VALUE = 0x000
export const VERSION = 0x004
export const DEVICE_ID = 0x008
export const VENDOR_ID = 0x00c
export const DEVICE_FEATURES = 0x010
export const DEVICE_FEATURES_SEL = 0x014
export const DRIVER_FEATURES = 0x020
export const DRIVER_FEATURES_SEL = 0x024
export const QUEUE_SEL = 0x030
export const QUEUE_NUM_MAX = 0x034
export const QUEUE_NUM = 0x038
export const QUEUE_READY = 0x044
export const QUEUE_NOTIFY = 0x050
export const INTERRUPT_STATUS = 0x060
export const INTERRUPT_ACK = 0x064
export const STATUS = 0x070
export const QUEUE_DESC_LOW = 0x080
export const QUEUE_DESC_HIGH = 0x084
export const QUEUE_DRIVER_LOW = 0x090
export const QUEUE_DRIVER_HIGH = 0x094
export const QUEUE_DEVICE_LOW = 0x0a0
export const QUEUE_DEVICE_HIGH = 0x0a4
export const SHM_SEL = 0x0ac
export const SHM_LEN_LOW = 0x0b0
export const SHM_LEN_HIGH = 0x0b4
export const SHM_BASE_LOW = 0x0b8
export const SHM_BASE_HIGH = 0x0bc
export const QUEUE_RESET = 0x0c0
export const CONFIG_GENERATION = 0x0fc
export const CONFIG = 0x100

/** "virt", little-endian. */
export const MAGIC = 0x74726976
export const MMIO_VERSION = 2
/** "VTRN": not registered with anyone; drivers match on the device id alone. */
export const VENDOR = 0x4e525456

export const STATUS_ACKNOWLEDGE = 1
export const STATUS_DRIVER = 2
export const STATUS_DRIVER_OK = 4
export const STATUS_FEATURES_OK = 8
export const STATUS_NEEDS_RESET = 64
export const STATUS_FAILED = 128

export const INTERRUPT_USED_BUFFER = 1
export const INTERRUPT_CONFIG_CHANGE = 2
