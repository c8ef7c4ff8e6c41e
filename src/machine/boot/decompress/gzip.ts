/** gzip, by Node's own zlib. */
import { gunzipSync } from 'node:zlib'
import { corrupt, tooLarge } from './faults.ts'

export function gunzip(data: Uint8Array, limit: number): Uint8Array {
  try {
    // The kernel's payload may have padding after the stream: zlib is told to stop at its end.
    return gunzipSync(data, { maxOutputLength: limit })
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    if (code === 'ERR_BUFFER_TOO_LARGE') throw tooLarge('gzip', limit)
    throw corrupt('gzip', message)
  }
}
