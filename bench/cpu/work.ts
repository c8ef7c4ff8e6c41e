/** What the guest does. Each piece is a few lines of shell; marks on the console before and after it are what is timed. */
import { PYTHON } from './python.ts'

export interface Work {
  /** For `--only`. */
  readonly key: string
  readonly metric: string
  /** Done before the first mark. */
  readonly prepare?: string
  readonly script: string
  readonly python?: boolean
}

export const BOOT = { key: 'boot', metric: 'boot to user space' }

export const WORK: readonly Work[] = [
  {
    key: 'sha256',
    metric: 'sha256sum 64 MB',
    prepare: 'dd if=/dev/zero of=/tmp/zeros bs=1M count=64 2> /dev/null',
    script: 'sha256sum /tmp/zeros > /dev/null',
  },
  {
    key: 'gzip',
    metric: 'gzip 16 MB',
    // Twice as far as gzip looks back, so that repeating it does not make it easier.
    prepare: 'rm -f /tmp/zeros; for i in 1 2 3 4 5 6 7 8 9; do cat /bin/busybox; done | head -c 16777216 > /tmp/data',
    script: 'gzip -c /tmp/data > /dev/null',
  },
  {
    key: 'shell',
    metric: 'shell loop 100,000',
    prepare: 'rm -f /tmp/data',
    script: 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done',
  },
  {
    key: 'fork',
    metric: 'fork+exec 200',
    script: 'n=0; while [ $n -lt 200 ]; do /bin/uname > /dev/null; n=$((n+1)); done',
  },
  {
    key: 'dd',
    metric: 'dd 100,000 bytes',
    script: 'dd if=/dev/zero of=/dev/null bs=1 count=100000 2> /dev/null',
  },
  {
    key: 'python-start',
    metric: 'python3 start-up x5',
    // The first start compiles the library; that is not what is measured.
    prepare: `${PYTHON} -c 'print(1)' > /dev/null`,
    script: `for i in 1 2 3 4 5; do ${PYTHON} -c 'print(1)' > /dev/null; done`,
    python: true,
  },
  {
    key: 'python',
    metric: 'python3 benchmark',
    script: `${PYTHON} /bench.py > /dev/null`,
    python: true,
  },
]

/** Calls, dictionaries, strings, lists and floating point in about equal parts. */
export const PYTHON_PROGRAM = `
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

class Body:
    def __init__(self, x, v, m):
        self.x, self.v, self.m = x, v, m

def bodies(steps):
    all = [Body(0.0, 0.0, 40.0), Body(4.8, 0.6, 0.04), Body(8.3, 1.0, 0.01), Body(12.9, 1.1, 0.002)]
    for _ in range(steps):
        for a in all:
            for b in all:
                if a is not b:
                    d = b.x - a.x
                    a.v += 0.001 * b.m * d / ((d * d + 0.01) ** 1.5)
        for a in all:
            a.x += 0.001 * a.v
    return all[0].x

def words(n):
    count = {}
    for i in range(n):
        w = 'w%d' % (i * 7919 % 5003)
        count[w] = count.get(w, 0) + 1
    return sorted(count.items(), key=lambda e: (-e[1], e[0]))[0]

def sieve(n):
    flags = [True] * n
    for i in range(2, int(n ** 0.5) + 1):
        if flags[i]:
            for j in range(i * i, n, i):
                flags[j] = False
    return sum(flags)

print(fib(19), bodies(1500), words(30000), sieve(100000))
`

/** The script that the guest's init starts. */
export function guestScript(chosen: readonly Work[]): string {
  const lines = ['echo @boot']
  for (const { key, prepare, script } of chosen) {
    if (prepare) lines.push(prepare)
    lines.push(`echo @start ${key}`, script, `echo @end ${key}`)
  }
  return `${lines.join('\n')}\necho @done\n`
}
