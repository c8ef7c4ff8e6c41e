import { describe, expect, it } from 'vitest'
import { TestbedError } from './errors.ts'
import { loadOrder, parseDependencies } from './host-kernel.ts'

/** Lines of depmod's output for Debian's 6.1 kernel. */
const MODULES_DEP = `kernel/arch/x86/kvm/kvm.ko: kernel/virt/lib/irqbypass.ko
kernel/arch/x86/kvm/kvm-amd.ko: kernel/drivers/crypto/ccp/ccp.ko kernel/arch/x86/kvm/kvm.ko kernel/virt/lib/irqbypass.ko
kernel/drivers/crypto/ccp/ccp.ko:
kernel/virt/lib/irqbypass.ko:
kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/fscache/fscache.ko kernel/fs/netfs/netfs.ko
`

describe('the order in which modules are loaded', () => {
  const dependencies = parseDependencies(MODULES_DEP)

  it('puts what a module needs before it, and nothing twice', () => {
    const names = loadOrder(dependencies, ['kvm-amd', 'kvm', '9p']).map(path => path.replace(/.*\//, ''))
    expect(names).toEqual([
      ...['irqbypass.ko', 'kvm.ko', 'ccp.ko', 'kvm-amd.ko'],
      ...['netfs.ko', 'fscache.ko', '9pnet.ko', '9p.ko'],
    ])
  })

  it('says which module is missing', () => {
    expect(() => loadOrder(dependencies, ['kvm-intel'])).toThrow(TestbedError)
    expect(() => loadOrder(dependencies, ['kvm-intel'])).toThrow(/kvm-intel/)
  })
})
