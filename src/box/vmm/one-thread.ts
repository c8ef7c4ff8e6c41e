/** Whether a VMM does all its work on one thread (placement.ts): known before it is started. */
import { MainLoop } from '../../host/main-loop.ts'
import type { LaunchPlan } from './launch.ts'

/** `many` puts every machine on threads of its own: to compare, and for guests that keep their disk or network card busy. */
export const THREADS_VARIABLE = 'VITRINE_THREADS'

export const fitsOneThread = ({ accel }: LaunchPlan, cpus: number): boolean =>
  accel === 'soft' && cpus === 1 && MainLoop.isAvailable && process.env[THREADS_VARIABLE] !== 'many'
