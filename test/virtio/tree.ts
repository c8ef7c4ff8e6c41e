/** A tree of files to be unpacked in a guest, and the checksum of all that is in it, as this host sees it. */
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

export interface TestTree {
  readonly archive: Uint8Array
  /** Run where the archive was unpacked in /mnt: prints the checksum. */
  readonly command: string
  readonly checksum: string
}

const LISTING = 'find . -type f | sort | xargs sha256sum | sha256sum'

/** 300 files in 20 folders, of 0 to 60 KiB; made in `folder`. */
export function testTree(folder: string): TestTree {
  const root = join(folder, 'tree')
  for (let i = 0; i < 300; i++) {
    const inside = join(root, `folder ${i % 20}`.replace(' ', '-'))
    mkdirSync(inside, { recursive: true })
    const block = createHash('sha256').update(`file ${i}`).digest()
    writeFileSync(join(inside, `file-${i}`), Buffer.concat(Array.from({ length: (i * 37) % 1900 }, () => block)))
  }
  const archive = join(folder, 'tree.tar')
  execFileSync('tar', ['-cf', archive, '-C', folder, 'tree'])
  const [checksum] = execFileSync('sh', ['-c', LISTING], {
    cwd: root,
    encoding: 'utf8',
    env: { ...process.env, LC_ALL: 'C' },
  }).split(' ')
  return { archive: readFileSync(archive), command: `cd /mnt/tree && ${LISTING}; cd /`, checksum: checksum! }
}
