/**
 * The Debian packages that tests and benchmarks use, each with the program that shows it is there and the reason for
 * it. `npm test` installs the absent ones when it runs as root with apt, and otherwise names them.
 */
export interface DebianPackage {
  readonly name: string
  /** A file that the package installs; it is there exactly when the package is. */
  readonly file: string
  readonly reason: string
}

export const DEBIAN_PACKAGES: readonly DebianPackage[] = [
  { name: 'qemu-system-x86', file: '/usr/bin/qemu-system-x86_64', reason: 'the emulated AMD host; peer of boot' },
  { name: 'qemu-utils', file: '/usr/bin/qemu-img', reason: 'oracle for QCOW2' },
  { name: 'busybox-static', file: '/bin/busybox', reason: 'user land of test guests and of the emulated host' },
  { name: 'kmod', file: '/sbin/depmod', reason: 'order in which the modules of the emulated host are loaded' },
  { name: 'cpio', file: '/bin/cpio', reason: 'oracle for our initramfs writer' },
  { name: 'acpica-tools', file: '/usr/bin/iasl', reason: 'oracle for our ACPI tables' },
  { name: 'e2fsprogs', file: '/sbin/e2fsck', reason: 'oracle for ext4' },
  { name: 'attr', file: '/usr/bin/getfattr', reason: 'extended attributes of the trees that images are compared with' },
  {
    name: 'skopeo',
    file: '/usr/bin/skopeo',
    reason: 'pushes test images to a registry, writes OCI layouts and archives',
  },
  { name: 'umoci', file: '/usr/bin/umoci', reason: 'oracle for the layers of an image applied to a tree' },
  { name: 'mmdebstrap', file: '/usr/bin/mmdebstrap', reason: 'makes the Debian that is run in boxes' },
  {
    name: 'dpkg-dev',
    file: '/usr/bin/dpkg-scanpackages',
    reason: 'describes the repository that apt-get in a box uses',
  },
  { name: 'docker-registry', file: '/usr/bin/docker-registry', reason: 'a registry on 127.0.0.1 to pull from' },
  { name: 'tmux', file: '/usr/bin/tmux', reason: 'a terminal for the test of interactive shells' },
  { name: 'iproute2', file: '/sbin/ip', reason: 'network namespaces in which the kernel is the peer of our network' },
  { name: 'socat', file: '/usr/bin/socat', reason: 'streams and datagrams through our network' },
  { name: 'curl', file: '/usr/bin/curl', reason: 'HTTP through our network' },
  { name: 'bind9-dnsutils', file: '/usr/bin/dig', reason: 'asks our DNS over UDP and TCP' },
  { name: 'passt', file: '/usr/bin/passt', reason: 'peer of the network benchmark' },
  { name: 'git', file: '/usr/bin/git', reason: 'a server that guests clone from' },
  { name: 'iperf3', file: '/usr/bin/iperf3', reason: 'measures our network' },
  { name: 'tshark', file: '/usr/bin/tshark', reason: 'oracle for recorded packets' },
  { name: 'bc', file: '/usr/bin/bc', reason: 'big numbers, here and in a guest on the software CPU' },
  { name: 'openssl', file: '/usr/bin/openssl', reason: 'hashes and ciphers, here and in a guest on the software CPU' },
  { name: 'lz4', file: '/usr/bin/lz4', reason: 'oracle for the LZ4 decompressor' },
  { name: 'xz-utils', file: '/usr/bin/xz', reason: 'XZ payloads and oracle' },
  { name: 'zstd', file: '/usr/bin/zstd', reason: 'zstd payloads and oracle' },
  { name: 'gcc', file: '/usr/bin/gcc', reason: 'guest programs, layout checks against kernel headers, peers in C' },
  { name: 'linux-libc-dev', file: '/usr/include/linux/kvm.h', reason: 'kernel headers for the layout checks' },
]
