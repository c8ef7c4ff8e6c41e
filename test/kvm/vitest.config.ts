/** The tests that run inside the emulated AMD host, on kvm-amd: `npm run test:kvm`. One file at a time: it has one slow CPU. */
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    name: 'kvm',
    root: fileURLToPath(new URL('../..', import.meta.url)),
    include: ['test/kvm/**/*.kvm.test.ts', 'src/kvm/**/*.test.ts'],
    pool: 'forks',
    fileParallelism: false,
    testTimeout: 400_000,
    hookTimeout: 400_000,
  },
})
