import { readFileSync } from 'node:fs'
import { Box } from '../src/box/box.ts'
import { Runtime } from '../src/box/runtime.ts'
const count = Number(process.argv[2] ?? 10)
const runtime = new Runtime({})
const box = await Box.create({ memoryMib: 128, diskGib: 1, accel: 'soft' }, runtime)
await box.exec('/bin/true')
const cpu = (pid: number) => { const s = readFileSync(`/proc/${pid}/stat`,'utf8'); const f = s.slice(s.lastIndexOf(')')+2).split(' '); return [Number(f[11])*10, Number(f[12])*10] }
const t0 = performance.now()
const forks = await box.fork({ count })
const t1 = performance.now()
const pids = await Promise.all(forks.map(async f => (await f.vmm()).pid))
console.log('cpu after fork (user,sys)', pids.slice(0,5).map(cpu).join(' | '))
const t2 = performance.now()
await Promise.all(forks.map(f => f.exec('/bin/true')))
const t3 = performance.now()
console.log('fork', Math.round(t1-t0), 'exec', Math.round(t3-t2))
console.log('cpu after exec', pids.slice(0,5).map(cpu).join(' | '))
const st = forks.map(f => f.bootStages!)
console.log(JSON.stringify(st[0]), JSON.stringify(st.at(-1)))
const pss = pids.map(p => Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${p}/smaps_rollup`,'utf8'))![1]))
console.log('pss MiB', (pss.reduce((a,b)=>a+b,0)/count/1024).toFixed(2))
const pid = pids[Math.min(3,count-1)]!
console.log(readFileSync(`/proc/${pid}/smaps_rollup`,'utf8').split('\n').filter(l=>/^(Rss|Pss|Private|Shared|Anon)/.test(l)).join('\n'))
// by mapping
type M = { name: string; start: number; size: number; pd: number; pss: number; perm: string; rss:number }
const ms: M[] = []
for (const line of readFileSync(`/proc/${pid}/smaps`,'latin1').split('\n')) {
  const h = /^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)$/.exec(line)
  if (h) ms.push({ name: h[4]!, start: parseInt(h[1]!,16), size: parseInt(h[2]!,16)-parseInt(h[1]!,16), pd: 0, pss: 0, perm: h[3]!, rss: 0 })
  const v = /^(Private_Dirty|Pss|Rss): +(\d+)/.exec(line); if (v) { const m = ms.at(-1)!; if (v[1]==='Pss') m.pss=+v[2]!; else if (v[1]==='Rss') m.rss=+v[2]!; else m.pd=+v[2]! }
}
// guest memory: find maps of .mem; the wasm memory begins RAM_OFFSET before
const mem = ms.filter(m => /\.mem/.test(m.name))
const lo = Math.min(...mem.map(m=>m.start)), hi = Math.max(...mem.map(m=>m.start+m.size))
const cls = (m: M) => m.start >= lo - (128<<20) - (16<<20) && m.start < lo ? 'wasm memory below RAM' : m.start >= lo && m.start < hi ? 'guest RAM' : m.name ? m.name.replace(/.*\//,'') : (m.perm.includes('x') ? 'anon x' : 'anon') 
const sums = new Map<string,{pd:number,pss:number,rss:number}>()
for (const m of ms) { const c = cls(m); const s = sums.get(c) ?? {pd:0,pss:0,rss:0}; s.pd+=m.pd; s.pss+=m.pss; s.rss+=m.rss; sums.set(c,s) }
for (const [c,s] of [...sums].sort((a,b)=>b[1].pss-a[1].pss).slice(0,14)) console.log(c.padEnd(28), 'pd', s.pd, 'pss', s.pss, 'rss', s.rss)
console.log('--- biggest private dirty')
for (const m of [...ms].sort((a,b)=>b.pd-a.pd).slice(0,25)) console.log(m.start.toString(16), m.perm, 'size', m.size/1024, 'pd', m.pd, 'pss', m.pss, m.name.replace(/.*\//,''))
if (process.argv[3]) await new Promise(r => setTimeout(r, Number(process.argv[3])*1000))
await Promise.all(forks.map(f => f.remove({ force: true })))
await box.remove({ force: true })
