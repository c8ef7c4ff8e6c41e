import { defineConfig } from 'vitest/config'

/** `unit`: beside the code, seconds. `guest`: boots guests on the software CPU. The KVM tests run inside the emulated AMD host: `npm run test:kvm`. */
export default defineConfig({
  test: {
    pool: 'forks',
    maxWorkers: 2,
    // Limits are for what hangs: a machine that others use takes several times as long as an idle one.
    testTimeout: 120_000,
    hookTimeout: 180_000,
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: [
            'src/**/*.test.ts',
            'bench/**/*.test.ts',
            'scripts/**/*.test.ts',
            'test/testbed/**/*.test.ts',
            'test/box/**/*.test.ts',
            'test/image/**/*.test.ts',
            'test/virtio/**/*.test.ts',
            'test/soft/**/*.test.ts',
            'test/oracle/**/*.test.ts',
          ],
        },
      },
      {
        extends: true,
        test: {
          name: 'guest',
          include: ['test/guest/**/*.test.ts', 'examples/**/*.test.ts'],
          testTimeout: 400_000,
          hookTimeout: 400_000,
        },
      },
    ],
  },
})
