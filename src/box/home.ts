/**
 * The home directory: everything that Vitrine keeps between runs.
 *
 *   home/
 *     boxes/<id>/      one box: box.json, disk.qcow2, locks, sockets, logs
 *     names/<name>     the id of the box with that name (created exclusively, so names are unique between processes)
 *     networks/ net/   named networks and where their boxes meet (networks.ts)
 *     images/ kernels/ caches of src/image
 *     snapshots/       of boxes, and templates (src/snapshot)
 *     code/            what V8 compiled for starts like the last ones (src/host/kept-code.ts)
 *
 * Any number of processes may use one home at the same time.
 */
import { mkdirSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { defaultHome } from '../image/kernel/cache.ts'
import { BoxError } from './errors.ts'

/** A Unix socket's path has at most 107 bytes (108 with its terminator). */
const SOCKET_PATH_MAX = 107

/** Where it is remembered that KVM is of no use on this host (accelerator-note.ts). */
export const noKvmNote = (home: string): string => join(home, 'no-kvm')

export class Home {
  readonly path: string

  constructor(path: string = defaultHome()) {
    this.path = resolve(path)
    const longest = Buffer.byteLength(join(this.path, 'boxes', '0'.repeat(12), 'control.sock'))
    if (longest > SOCKET_PATH_MAX) {
      throw new BoxError(
        'HOME',
        `the home directory ${this.path} is too deep for Unix sockets: set VITRINE_HOME to a path that is ${longest - SOCKET_PATH_MAX} bytes shorter`,
      )
    }
  }

  get boxes(): string {
    return join(this.path, 'boxes')
  }

  get names(): string {
    return join(this.path, 'names')
  }

  /** Named networks (networks.ts), and where their boxes meet. */
  get networks(): string {
    return join(this.path, 'networks')
  }

  get networkFolders(): string {
    return join(this.path, 'net')
  }

  /** Makes the folders that are missing. */
  prepare(): void {
    try {
      mkdirSync(this.boxes, { recursive: true, mode: 0o700 })
      mkdirSync(this.names, { recursive: true, mode: 0o700 })
    } catch (error) {
      throw new BoxError(
        'HOME',
        `the home directory ${this.path} cannot be used (${(error as NodeJS.ErrnoException).code}): set VITRINE_HOME to a directory that you may write to`,
        { cause: error },
      )
    }
  }

  box(id: string): BoxFolder {
    return new BoxFolder(join(this.boxes, id), id)
  }
}

/** The files of one box. */
export class BoxFolder {
  readonly path: string
  readonly id: string

  constructor(path: string, id: string) {
    this.path = path
    this.id = id
  }

  #at(name: string): string {
    return join(this.path, name)
  }

  /** What the box is: `BoxRecord`. */
  get record(): string {
    return this.#at('box.json')
  }
  /** The disk: an overlay on the image's ext4. */
  get disk(): string {
    return this.#at('disk.qcow2')
  }
  /** Locked by the VMM process for as long as it lives. */
  get vmmLock(): string {
    return this.#at('vmm.lock')
  }
  /** Locked while a process starts, stops, snapshots or removes the box. */
  get operationLock(): string {
    return this.#at('operation.lock')
  }
  /** The VMM's control socket. */
  get controlSocket(): string {
    return this.#at('control.sock')
  }
  /** Connections to the guest's vsock ports. */
  get vsockSocket(): string {
    return this.#at('vsock.sock')
  }
  /** Connections to the guest's TCP ports: src/net/entrance.ts. */
  get netSocket(): string {
    return this.#at('net.sock')
  }
  /** What the box's network rules denied. */
  get denialLog(): string {
    return this.#at('denied.log')
  }
  /** What the VMM process itself printed: empty unless something went wrong. */
  get vmmLog(): string {
    return this.#at('vmm.log')
  }
  /** The guest's console. */
  get consoleLog(): string {
    return this.#at('console.log')
  }
  /** Output of the box's own command, when it was created with one. */
  get outputLog(): string {
    return this.#at('output.log')
  }
  /** The snapshot that the next start goes on from: `pending.ts`. */
  get pending(): string {
    return this.#at('pending.json')
  }
  /** There until the box runs for the first time: its disk is as the image has it. */
  get fresh(): string {
    return this.#at('fresh')
  }
  /** There while the running machine is paused. */
  get frozen(): string {
    return this.#at('frozen')
  }
  /** How the last run ended. */
  get lastExit(): string {
    return this.#at('exit.json')
  }
}
