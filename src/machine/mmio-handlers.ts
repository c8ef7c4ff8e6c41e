/** The handlers of device windows that a vCPU worker can make, by the kind of their description. */
import { virtioMmioHandler } from '../virtio/mmio/handler.ts'
import type { MmioDescription, MmioHandler, MmioHandlerFactory } from './device-slots.ts'

const FACTORIES: Record<MmioDescription['kind'], MmioHandlerFactory> = {
  'virtio-mmio': virtioMmioHandler,
}

export const openMmioHandler = (description: MmioDescription): MmioHandler => FACTORIES[description.kind](description)
