import { describe, expect, it } from 'vitest'
import { type ImageSettings, resolveConfig } from './options.ts'

const image = (cmd: readonly string[], entrypoint: readonly string[] = []): ImageSettings => ({
  ...{ env: {}, workdir: '/root', user: '', entrypoint, cmd },
})

describe("a box's own command", () => {
  it("is the image's where none is named, with the image's entrypoint", () => {
    expect(resolveConfig({ command: [] }, image(['nginx', '-g', 'daemon off;'])).command).toEqual([
      ...['nginx', '-g', 'daemon off;'],
    ])
    expect(resolveConfig({ command: ['-v'] }, image(['ls'], ['/start'])).command).toEqual(['/start', '-v'])
    expect(resolveConfig({}, image(['nginx'])).command).toBeNull()
  })

  it('is nothing where the image has only a shell, which would end at once without input', () => {
    for (const shell of ['/bin/sh', 'bash', '/usr/bin/zsh'])
      expect(resolveConfig({ command: [] }, image([shell])).command).toBeNull()
    expect(resolveConfig({ command: [] }, image([])).command).toBeNull()
  })

  it('is a shell where somebody wants one, and an entrypoint that ends like one', () => {
    expect(resolveConfig({ command: ['sh'] }, image(['bash'])).command).toEqual(['sh'])
    expect(resolveConfig({ command: [] }, image(['serve'], ['/entry.sh'])).command).toEqual(['/entry.sh', 'serve'])
    expect(resolveConfig({ command: [] }, image(['/entry.sh'])).command).toEqual(['/entry.sh'])
  })
})
