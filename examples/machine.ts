/**
 * A Linux machine in this very process: boots Debian's kernel, types at its console, and waits until it powers off.
 *
 *   npm run build && npx tsx examples/machine.ts
 */
import { buildInitramfs, findKernel, Machine } from 'vitrine'

const kernel = await findKernel({ progress: message => console.error(message) })
const machine = await Machine.create({
  kernel: { path: kernel.path },
  initrd: buildInitramfs({ modules: kernel.modules }),
  cmdline: 'console=ttyS0 quiet panic=-1 vitrine.mode=echo',
  cpus: 1,
  memoryMib: 256,
})

let output = ''
machine.on('console', async data => {
  process.stdout.write(data)
  output += Buffer.from(data).toString()
  if (/ready mode=echo/.test(output)) {
    output = ''
    await machine.console.write('hello, guest\npoweroff\n')
  }
})
machine.on('power', what => console.log(`power: ${what}`))

machine.start()
const exit = await machine.ended()
console.log(await machine.metrics())
await machine.close()
process.exitCode = exit.reason === 'power-off' ? 0 : 1
