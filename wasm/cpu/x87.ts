/** Placeholder of the entry point: every instruction of this kind is undefined until its owner fills it in. */
import { raiseUd } from './fault'

export function execX87(op: usize, ea: u64): void {
  raiseUd()
}
