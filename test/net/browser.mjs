// What a browser does, with Node's own clients: requests over one kept connection, then a WebSocket. Prints JSON.
// Run with --experimental-websocket.
import { Agent, request } from 'node:http'

const base = process.argv[2]
const agent = new Agent({ keepAlive: true, maxSockets: 1 })
const get = path =>
  new Promise((resolve, reject) => {
    request(`${base}${path}`, { agent }, response => {
      let body = ''
      response.on('data', data => {
        body += data
      })
      response.on('end', () => resolve({ body, socket: response.headers['x-socket'] }))
    })
      .on('error', reject)
      .end()
  })

const pages = []
for (let i = 0; i < 20; i++) pages.push(await get(`/page/${i}`))
agent.destroy()

const sent = Array.from({ length: 50 }, (_, i) => `message ${i} ${'x'.repeat(i * 20)}`)
const heard = []
await new Promise((resolve, reject) => {
  const socket = new WebSocket(base.replace('http', 'ws'))
  socket.onerror = event => reject(event.error ?? new Error('the WebSocket failed'))
  socket.onopen = () => {
    for (const text of sent) socket.send(text)
  }
  socket.onmessage = ({ data }) => {
    heard.push(data)
    if (heard.length === sent.length) socket.close()
  }
  socket.onclose = resolve
})
console.log(
  JSON.stringify({
    pages: pages.length,
    sockets: new Set(pages.map(({ socket }) => socket)).size,
    last: pages.at(-1).body,
    echoed: JSON.stringify(heard) === JSON.stringify(sent),
  }),
)
