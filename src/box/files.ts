/** `box.files`: the guest's files, whichever connection the box has to its guest at the moment. */
import type { Readable, Writable } from 'node:stream'
import type { AgentFiles, DirectoryEntry, FileEvent, FileInfo, WatchOptions, WriteOptions } from './agent/files.ts'

/** The files of a box; any use of them starts it. Failures are `AgentError`s with the name of the guest's errno. */
export class BoxFiles {
  readonly #connected: () => Promise<AgentFiles>

  constructor(connected: () => Promise<AgentFiles>) {
    this.#connected = connected
  }

  /** The whole file as bytes. */
  async read(path: string): Promise<Buffer> {
    return (await this.#connected()).read(path)
  }
  /** The whole file as UTF-8 text. */
  async readText(path: string): Promise<string> {
    return (await this.#connected()).readText(path)
  }
  /** A file, or a part of it, as a stream. `done` rejects when it cannot be read. */
  async readStream(
    path: string,
    options?: { offset?: number; length?: number },
  ): Promise<{ stream: Readable; done: Promise<void> }> {
    return (await this.#connected()).readStream(path, options)
  }
  /** Replaces or creates a file in one step; missing directories are made. */
  async write(path: string, data: string | Uint8Array, options?: WriteOptions): Promise<void> {
    return (await this.#connected()).write(path, data, options)
  }
  /** The same from a stream: the file appears when the stream has ended and `done` resolves. */
  async writeStream(path: string, options?: WriteOptions): Promise<{ stream: Writable; done: Promise<void> }> {
    return (await this.#connected()).writeStream(path, options)
  }
  /** What it is; of a symbolic link, what it leads to unless `follow` is false. */
  async stat(path: string, options?: { follow?: boolean }): Promise<FileInfo> {
    return (await this.#connected()).stat(path, options)
  }
  /** Whether there is anything at `path`. */
  async exists(path: string): Promise<boolean> {
    return (await this.#connected()).exists(path)
  }
  /** What a directory holds, by name. */
  async list(path: string): Promise<DirectoryEntry[]> {
    return (await this.#connected()).list(path)
  }
  /** Creates a directory and those above it. */
  async mkdir(path: string, options?: { mode?: number; parents?: boolean }): Promise<void> {
    return (await this.#connected()).mkdir(path, options)
  }
  /** Moves a file or directory within the guest; one that is at `to` is replaced as rename(2) does. */
  async rename(from: string, to: string): Promise<void> {
    return (await this.#connected()).rename(from, to)
  }
  /** Removes a file, an empty directory, or with `recursive` all that is below it. */
  async remove(path: string, options?: { recursive?: boolean }): Promise<void> {
    return (await this.#connected()).remove(path, options)
  }
  /** Sets permission bits. */
  async chmod(path: string, mode: number): Promise<void> {
    return (await this.#connected()).chmod(path, mode)
  }
  /** Calls `onEvent` for every change until the function that it resolves to is called; `onEnd` when the box stops before. */
  async watch(path: string, onEvent: (event: FileEvent) => void, options?: WatchOptions): Promise<() => void> {
    return (await this.#connected()).watch(path, onEvent, options)
  }
}
