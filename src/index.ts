/** The public face of Vitrine. */

export type {
  AcceleratorName,
  CpuDump,
  CpuRegisters,
  SoftOptions,
  StepExit,
  SystemRegisters,
} from './accel/contract.ts'
export { AgentError } from './box/agent/errors.ts'
export type { DirectoryEntry, FileEvent, FileInfo, WriteOptions } from './box/agent/files.ts'
export { Box, type BoxEvents, type BoxState, type ForkOptions, type SnapshotResult } from './box/box.ts'
export { BoxError, type BoxErrorCode } from './box/errors.ts'
export type {
  CollectOptions,
  CommandOptions,
  ExecOptions,
  Execution,
  ExecutionExit,
  ExecutionResult,
  SpawnOptions,
} from './box/execution.ts'
export type { BoxFiles } from './box/files.ts'
export type { BoxNetwork, NetworkFlow, UnixPort } from './box/network.ts'
export type { NetworkInfo } from './box/networks.ts'
export type { BoxOptions } from './box/options.ts'
export type { ProgressListener } from './box/prepare.ts'
export type { BoxConfig, NetworkPolicy, PortMapping } from './box/record.ts'
export { Runtime, type RuntimeOptions } from './box/runtime.ts'
export type { StartedFrom, StartOptions } from './box/start.ts'
export type { BootStages, BoxExit, BoxMetrics, OpenPort, VmmStatus } from './box/vmm/launch.ts'
export { assetPath } from './host/assets.ts'
export type { PruneOptions, PruneResult } from './image/collect.ts'
export { ImageError, type ImageErrorCode } from './image/errors.ts'
export { type Ext4Options, type Ext4Result, writeExt4 } from './image/ext4/writer.ts'
export { BOX_MODULES, buildInitramfs, ensureInitramfs, type InitramfsOptions } from './image/initramfs.ts'
export { KernelError, type KernelErrorCode } from './image/kernel/errors.ts'
export { type FindOptions, type FoundKernel, findKernel } from './image/kernel/find.ts'
export type { ImageConfig } from './image/manifest.ts'
export type { ImageProgress, Progress } from './image/progress.ts'
export {
  type GetImageOptions,
  type Image,
  ImageStore,
  type ImageStoreOptions,
  type ImageSummary,
} from './image/store.ts'
export { treeOfDirectory } from './image/tree/directory-source.ts'
export type { DeviceSlot, MachineDevice } from './machine/device-slots.ts'
export { MachineError, type MachineErrorCode } from './machine/errors.ts'
export { Machine, type MachineMetrics, type MachinePhase } from './machine/machine.ts'
export type { CpuState, MachineCpu } from './machine/machine-cpu.ts'
export { describeExit, formatDump, type MachineEvents, type MachineExit } from './machine/machine-events.ts'
export { hashMachine } from './machine/machine-hash.ts'
export type { MachineOptions } from './machine/machine-options.ts'
export { decodeMachineState, encodeMachineState, type MachineState } from './machine/machine-state.ts'
export type { PageTableEntry, Translation } from './machine/page-tables.ts'
export type { Denial } from './net/denials.ts'
export type { Bandwidth } from './net/description.ts'
export type { BlockImage, Extent, ExtentKind } from './qcow2/block-image.ts'
export { type CheckOptions, checkDisk } from './qcow2/check.ts'
export type { CheckReport } from './qcow2/check-report.ts'
export { type CommitOptions, commitDisk } from './qcow2/commit.ts'
export { type ConvertOptions, convertDisk } from './qcow2/convert.ts'
export { type CreateFileOptions, createDisk } from './qcow2/create.ts'
export { DiskError, type DiskErrorCode } from './qcow2/errors.ts'
export { type DiskInfo, infoOf, infoOfChain } from './qcow2/info.ts'
export { type MapEntry, mapDisk } from './qcow2/map.ts'
export { type DiskFormat, type OpenOptions, openDisk, probeFormat } from './qcow2/open.ts'
export { type RebaseOptions, rebaseDisk } from './qcow2/rebase.ts'
export type { Snapshot as DiskSnapshot } from './qcow2/snapshots.ts'
export { type ChangedWhat, diffSnapshots, type FileChange } from './snapshot/diff.ts'
export { SnapshotError, type SnapshotErrorCode } from './snapshot/errors.ts'
export { type ExportOptions, exportSnapshot } from './snapshot/export.ts'
export { type ImportOptions, importSnapshot } from './snapshot/import.ts'
export type { SnapshotManifest } from './snapshot/manifest.ts'
export { SnapshotStore } from './snapshot/store.ts'
export { describeSnapshot, type SnapshotInfo, type SnapshotNode, type SnapshotUse, treeOf } from './snapshot/tree.ts'
