import { Box } from '../src/box/box.ts'
import { Runtime } from '../src/box/runtime.ts'
const box = await Box.create({ memoryMib: 128, diskGib: 1, accel: 'soft' }, new Runtime({}))
await box.exec('/bin/true')
const [a, b] = await box.fork({ count: 2 })
const show = async (x: Box) => { await x.pause(); const c = (await x.metrics()).counters; await x.resume(); return c }
const pick = (c: Record<string, number>) => Object.fromEntries(Object.entries(c).filter(([k]) => k.startsWith('vcpu0')))
const a0 = await show(a!); console.log('ready', pick(a0))
await b!.exec('/bin/true'); const b0 = await show(b!); console.log('exec', pick(b0))
const b1 = await show(b!); console.log('again', pick(b1))
await b!.exec('/bin/true'); const b2 = await show(b!); console.log('exec2', pick(b2))
for (const x of [a!, b!, box]) await x.remove({ force: true })
