/** Time: nanoseconds since the machine started, from the host's clock or, in deterministic mode, from retired instructions. */
import { cpu } from './cpu'
import { hostNow } from './host'
import { OPTION_DETERMINISTIC } from './mode'
import { S_BUDGET, S_IDLE_SKIPPED, S_OPTIONS, S_RETIRED, S_TSC_OFFSET } from './state'

/** The time-stamp counter runs at 1 GHz, whatever the host: a tick is a nanosecond. */
export const TSC_KHZ: u32 = 1_000_000

export function nowNs(): f64 {
  const c = cpu
  if (load<u32>(c, S_OPTIONS) & OPTION_DETERMINISTIC) {
    // One instruction is a nanosecond; idle time is skipped over.
    return <f64>(load<i64>(c, S_RETIRED) - <i64>load<i32>(c, S_BUDGET)) + load<f64>(c, S_IDLE_SKIPPED)
  }
  return hostNow()
}

export function readTsc(): u64 {
  return <u64>(<i64>nowNs() + load<i64>(cpu, S_TSC_OFFSET))
}
