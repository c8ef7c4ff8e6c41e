/** Accesses outside RAM: the chips in here first, then the host's devices. */
import { cpu } from './cpu'
import { hostMmioRead, hostMmioWrite } from './host'
import { S_COUNT_MMIO, S_STOP, S_TEMP } from './state'

export function chipRead(address: u64, bytes: u32): u64 {
  const c = cpu
  store<u64>(c, load<u64>(c, S_COUNT_MMIO) + 1, S_COUNT_MMIO)
  store<u64>(c, 0, S_TEMP)
  hostMmioRead(<f64>address, bytes)
  return load<u64>(c, S_TEMP)
}

export function chipWrite(address: u64, bytes: u32, value: u64): void {
  const c = cpu
  store<u64>(c, load<u64>(c, S_COUNT_MMIO) + 1, S_COUNT_MMIO)
  store<u64>(c, value, S_TEMP)
  if (hostMmioWrite(<f64>address, bytes)) store<u32>(c, 1, S_STOP)
}
