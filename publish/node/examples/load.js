// Sends requests to shop.js for as many seconds as the argument says, by two clients for each route.
'use strict'
const { Agent, get } = require('node:http')

const agent = new Agent({ keepAlive: true })
const port = Number(process.env.PORT ?? 8080)
const end = Date.now() + 1000 * Number(process.argv[2])

function request(path) {
  return new Promise((resolve, reject) => {
    get({ agent, port, path }, (response) => response.resume().on('end', resolve)).on('error', reject)
  })
}

async function client(path, times) {
  while (Date.now() < end) {
    const start = performance.now()
    await request(path)
    times.push(performance.now() - start)
  }
}

async function load(path) {
  const times = []
  await Promise.all(Array.from({ length: 2 }, () => client(path, times)))
  times.sort((one, other) => one - other)
  const median = times[times.length >> 1].toFixed(1)
  console.log(`${path.padEnd(8)} ${String(times.length).padStart(6)} requests, median ${median} ms`)
}

for (const path of ['/cart', '/login', '/report']) load(path)
