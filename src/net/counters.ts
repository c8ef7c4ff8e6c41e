/** What the stack counts, in total. A frame that is not understood is dropped and counted, never an error. */
export class NetCounters {
  framesFromGuest = 0
  framesToGuest = 0
  bytesFromGuest = 0
  bytesToGuest = 0
  /** Too short, lengths that do not agree, options that run out of their header. */
  malformed = 0
  badChecksum = 0
  /** A source address that is not the guest's. */
  spoofed = 0
  /** Fragments of IP packets, and those that never became a packet: too late, too many, or overlapping. */
  fragments = 0
  reassembled = 0
  fragmentsDropped = 0
  /** Protocols and ethernet types that are not spoken here. */
  unknown = 0
  /** Frames for the guest that found the queue full. */
  queueFull = 0
  tcpOpened = 0
  tcpFailed = 0
  tcpResets = 0
  retransmits = 0
  outOfOrder = 0
  duplicates = 0
  zeroWindowProbes = 0
  keepAlives = 0
  challengeAcks = 0
  /** Data that could not be kept because memory for held data is used up; the guest sends it again. */
  memoryDrops = 0
  udpFlows = 0
  udpEvicted = 0
  /** New connections refused because the table is full. */
  flowsRefused = 0
  denied = 0
  /** Times that a bandwidth limit made somebody wait. */
  limited = 0
  /** Echo requests that went out, and those that this host gives no socket for. */
  pings = 0
  pingsRefused = 0
  /** Frames that a recording had no room for. */
  recordLost = 0
  dnsQueries = 0
  dnsCached = 0
  dnsFailed = 0
  /** Questions over TCP: the guest's, and ours to a resolver whose answer was cut. */
  dnsOverTcp = 0
  dnsRetriedOverTcp = 0
}
