/** What can go wrong with a testbed: it cannot be had here, it does not come up, or it stops answering. */
export type TestbedErrorCode = 'unavailable' | 'boot-failed' | 'host-died' | 'timeout'

export class TestbedError extends Error {
  readonly code: TestbedErrorCode

  constructor(code: TestbedErrorCode, message: string) {
    super(message)
    this.name = 'TestbedError'
    this.code = code
  }
}
