/** The part of the WebAssembly JavaScript API that we use; @types/node 20 leaves it to the DOM's types. */
declare namespace WebAssembly {
  interface MemoryDescriptor {
    initial: number
    maximum?: number
    shared?: boolean
  }
  class Memory {
    constructor(descriptor: MemoryDescriptor)
    readonly buffer: SharedArrayBuffer
    grow(pages: number): number
  }
  class Table {
    constructor(descriptor: { element: 'anyfunc'; initial: number; maximum?: number })
    readonly length: number
    get(index: number): unknown
    set(index: number, value: unknown): void
    grow(count: number): number
  }
  class Global<T = number | bigint> {
    constructor(descriptor: { value: 'i32' | 'i64' | 'f32' | 'f64'; mutable?: boolean }, value?: T)
    value: T
  }
  type ImportValue = Memory | Table | Global | number | ((...args: never[]) => unknown)
  type Imports = Record<string, Record<string, ImportValue>>
  class Module {
    constructor(bytes: Uint8Array)
    static exports(module: Module): { name: string; kind: string }[]
    static imports(module: Module): { module: string; name: string; kind: string }[]
  }
  class Instance {
    constructor(module: Module, imports?: Imports)
    readonly exports: Record<string, unknown>
  }
  class CompileError extends Error {}
  class LinkError extends Error {}
  class RuntimeError extends Error {}
  function compile(bytes: Uint8Array): Promise<Module>
  function instantiate(module: Module, imports?: Imports): Promise<Instance>
  function validate(bytes: Uint8Array): boolean
}
