/* Growable byte queues and checked parsing of payloads. */
#ifndef VITRINE_BYTES_H
#define VITRINE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes waiting to go somewhere: appended at the end, consumed at the start. */
struct queue {
	uint8_t *data;
	size_t start, end, capacity;
};

static inline size_t queue_size(const struct queue *q)
{
	return q->end - q->start;
}
static inline uint8_t *queue_head(struct queue *q)
{
	return q->data + q->start;
}
/* Room for `size` bytes at the end; they count once queue_commit says so. Aborts when memory is exhausted. */
uint8_t *queue_reserve(struct queue *q, size_t size);
void queue_commit(struct queue *q, size_t size);
void queue_append(struct queue *q, const void *bytes, size_t size);
void queue_consume(struct queue *q, size_t size);
void queue_free(struct queue *q);

void put_u16(struct queue *q, uint16_t value);
void put_u32(struct queue *q, uint32_t value);
void put_u64(struct queue *q, uint64_t value);
void put_string(struct queue *q, const char *text);

/* Reads a payload from front to back. After a read past the end `bad` is set and everything reads as zero. */
struct reader {
	const uint8_t *at, *end;
	bool bad;
};

uint16_t get_u16(struct reader *r);
uint32_t get_u32(struct reader *r);
uint64_t get_u64(struct reader *r);
/* A fresh NUL-terminated copy that the caller frees; NULL (and bad) when truncated or with a NUL inside. */
char *get_string(struct reader *r);
static inline size_t reader_left(const struct reader *r)
{
	return (size_t)(r->end - r->at);
}

/* calloc and friends that do not return without memory. */
void *must_alloc(size_t size);
char *must_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
