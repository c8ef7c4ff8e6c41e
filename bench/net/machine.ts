/**
 * Our guest of the network benchmark, a program of its own as QEMU is: a machine with one network card, on the threads that the VMM of a box
 * would put it on, with the same rights. What the guest prints goes to the standard output.
 *
 *   node --import tsx machine.ts KERNEL INITRD MIB ACCELERATOR COMMAND-LINE
 */
import { readFileSync } from 'node:fs'
import type { AcceleratorName } from '../../src/accel/contract.ts'
import { loadSoft } from '../../src/box/vmm/load-early.ts'
import { placementFor } from '../../src/box/vmm/placement.ts'
import { lockUp } from '../../src/host/jail.ts'
import { Machine } from '../../src/machine/machine.ts'
import { HostedDevice } from '../../src/virtio/worker/hosted-device.ts'

async function main(kernel: string, initrd: string, mib: string, accel: AcceleratorName, cmdline: string) {
  // What is loaded when it is first used: tsx starts a program for what it has not seen, which may not be done any more.
  await (accel === 'soft'
    ? loadSoft()
    : Promise.all([import('../../src/kvm/accelerator.ts'), import('../../src/kvm/vcpu.ts')]))
  lockUp()
  const { vcpus, busy } = placementFor({ accel }, 1)
  const options = { policy: { allow: ['host.vitrine.internal'] } }
  const card = { kind: 'net', mac: '02:00:00:00:00:01', link: { kind: 'user', options } } as const
  const machine = await Machine.create({
    ...{ kernel: readFileSync(kernel), initrd: readFileSync(initrd), cmdline },
    ...{ memoryMib: Number(mib), cpus: 1, accel, devices: [new HostedDevice(busy(), card)], threads: vcpus },
  })
  machine.on('console', data => void process.stdout.write(data.slice()))
  machine.once('exit', exit => {
    process.stderr.write(`${exit.reason}\n`)
    process.exit(1)
  })
  machine.start()
}

await main(...(process.argv.slice(2) as [string, string, string, AcceleratorName, string]))
