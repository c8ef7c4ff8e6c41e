/** Whether a VMM does all its work on one thread (placement.ts): known before it is started. */
import { MainLoop } from '../../host/main-loop.ts'

/** `many` puts every machine on threads of its own: to compare, and for guests that keep their disk or network card busy. */
export const THREADS_VARIABLE = 'VITRINE_THREADS'

export const fitsOneThread = (accelerator: string, cpus: number): boolean =>
  accelerator === 'soft' && cpus === 1 && MainLoop.isAvailable && process.env[THREADS_VARIABLE] !== 'many'
