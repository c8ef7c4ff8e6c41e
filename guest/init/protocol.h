/*
 * The protocol between the host and the agent in the guest: frames over one byte stream (vsock), many channels a
 * connection. Everything is little-endian. src/box/agent/protocol.ts is the host's copy; a test compares the two.
 *
 *   frame:  u32 payload length | u32 channel | u8 type | u8 stream | u16 flags | payload
 *
 * A channel is opened by a request of the host under a number that the host chose, and ends with FRAME_EXIT or
 * FRAME_RESULT. Strings in payloads are u32 length + bytes, with no terminator.
 *
 * Data in either direction is under flow control: each stream of a channel starts with WINDOW_INITIAL bytes of credit,
 * the receiver grants more with FRAME_WINDOW as it consumes, and a sender that exceeds its credit has its connection
 * closed.
 */
#ifndef VITRINE_PROTOCOL_H
#define VITRINE_PROTOCOL_H

#include <stdint.h>

#define PROTOCOL_VERSION 1
#define AGENT_PORT 1024
#define FRAME_HEADER_SIZE 12
#define FRAME_PAYLOAD_MAX (64 * 1024)
#define WINDOW_INITIAL (256 * 1024)

enum frame_type {
	/* both ways */
	FRAME_HELLO = 1,  /* u32 version */
	FRAME_DATA = 2,   /* bytes of a stream; FLAG_EOF ends it */
	FRAME_WINDOW = 3, /* u32 more credit for a stream */

	/* host to guest, about a running channel */
	FRAME_SIGNAL = 4, /* u32 signal number, to the process group */
	FRAME_RESIZE = 5, /* u16 rows, u16 columns */
	FRAME_CLOSE = 6,  /* the host lost interest: kill it, send nothing more */

	/* host to guest, opening a channel that ends with FRAME_EXIT */
	FRAME_EXEC = 16,       /* see exec_request() */
	FRAME_READ_FILE = 17,  /* string path, u64 offset, u64 length (all ones: to the end) */
	FRAME_WRITE_FILE = 18, /* string path, u32 mode, u32 flags (WRITE_*) */
	FRAME_TREE_OUT = 19,   /* string path: a stream of entries (tree.c) */
	FRAME_TREE_IN = 20,    /* string path of an existing directory to unpack entries into */
	FRAME_WATCH = 21,      /* string path, u32 recursive: FRAME_EVENTs until closed */
	FRAME_LIST_OUT = 22,   /* string path: as FRAME_LIST, for a directory that is too large for one frame */

	/* host to guest, opening a channel that ends with FRAME_RESULT */
	FRAME_STAT = 32,     /* string path, u32 follow */
	FRAME_LIST = 33,     /* string path */
	FRAME_MKDIR = 34,    /* string path, u32 mode, u32 parents */
	FRAME_RENAME = 35,   /* string from, string to */
	FRAME_REMOVE = 36,   /* string path, u32 recursive */
	FRAME_CHMOD = 37,    /* string path, u32 mode */
	FRAME_CLOCK = 40,    /* u64 nanoseconds since 1970, then random bytes for the entropy pool */
	FRAME_GROW = 41,     /* make the root file system as large as its disk */
	FRAME_IDENTITY = 42, /* string hostname, then see network.c */
	FRAME_INFO = 43,     /* memory, load, uptime, process count, whether it still boots */
	FRAME_SYNC = 45,     /* everything written is on the disk when this is answered */
	FRAME_SHUTDOWN = 44, /* u32 0 power off, 1 reboot: sync, end processes, unmount */

	/* guest to host */
	FRAME_STARTED = 64, /* u32 pid */
	FRAME_EXIT = 65,    /* u32 EXIT_*, u32 value, u32 flags, string message */
	FRAME_RESULT = 66,  /* u32 errno (0: success), then what the request returns or a string message */
	FRAME_EVENT = 67,   /* u32 EVENT_*, string path */
};

enum { STREAM_STDIN = 0, STREAM_STDOUT = 1, STREAM_STDERR = 2 };
enum { FLAG_EOF = 1 };
enum { EXEC_TTY = 1, EXEC_SURVIVES = 2 };
enum { WRITE_APPEND = 1, WRITE_EXCLUSIVE = 2 };
enum { EXIT_CODE = 0, EXIT_SIGNAL = 1, EXIT_NOT_STARTED = 2 };
enum { EXIT_FLAG_TIMED_OUT = 1, EXIT_FLAG_CORE = 2 };
enum { EVENT_CREATED = 1, EVENT_CHANGED = 2, EVENT_REMOVED = 3, EVENT_OVERFLOW = 4 };

#endif
