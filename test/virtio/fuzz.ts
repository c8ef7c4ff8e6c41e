/** `npm run fuzz -- virtio`: seeds for every device, for as long as it is told. */
import { parseArgs } from 'node:util'
import { fuzzDevice } from '../../src/virtio/testing/fuzz.ts'
import { SUBJECTS } from '../../src/virtio/testing/subjects.ts'

export async function fuzz(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      seed: { type: 'string', default: String(Date.now() % 1_000_000_000) },
      count: { type: 'string', default: '200' },
      steps: { type: 'string', default: '1000' },
      only: { type: 'string', multiple: true },
    },
  })
  const first = Number(values.seed)
  const subjects = SUBJECTS.filter(subject => values.only?.includes(subject.name) ?? true)
  let good = true
  for (const subject of subjects) {
    let faults = 0
    for (let seed = first; seed < first + Number(values.count); seed++) {
      try {
        faults += fuzzDevice(subject, seed, Number(values.steps)).faults
      } catch (error) {
        good = false
        console.error((error as Error).message)
      }
    }
    console.log(
      `${subject.name}: ${values.count} sequences of ${values.steps} steps from seed ${first}, ${faults} guest faults`,
    )
  }
  return good
}
