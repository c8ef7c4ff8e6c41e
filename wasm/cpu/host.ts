/** What the host gives the CPU: everything outside RAM and the chips that are in here. Data passes through S_TEMP. */

/** Fills S_TEMP with `size` (1, 2, 4, 8) bytes read at guest-physical `address`. */
@external('host', 'mmioRead')
export declare function hostMmioRead(address: f64, size: i32): void
/** Writes the `size` bytes at S_TEMP. Returns 1 when the machine is to stop after this instruction. */
@external('host', 'mmioWrite')
export declare function hostMmioWrite(address: f64, size: i32): i32
@external('host', 'portRead')
export declare function hostPortRead(port: i32, size: i32): i32
@external('host', 'portWrite')
export declare function hostPortWrite(port: i32, size: i32, value: i32): i32
/** Nanoseconds of the host's monotonic clock since the machine started. */
@external('host', 'now')
export declare function hostNow(): f64
/** Wakes vCPU `index`, which may sleep in HLT. */
@external('host', 'wake')
export declare function hostWake(index: i32): void
/** Seconds since 1970, of the clock on the wall. */
@external('host', 'wallSeconds')
export declare function hostWallSeconds(): f64
