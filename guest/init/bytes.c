#include "bytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *must_alloc(size_t size)
{
	void *p = calloc(1, size ? size : 1);
	if (!p)
		abort();
	return p;
}

char *must_format(const char *format, ...)
{
	char *text = NULL;
	va_list args;
	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		abort();
	va_end(args);
	return text;
}

uint8_t *queue_reserve(struct queue *q, size_t size)
{
	if (q->capacity - q->end < size) {
		size_t used = queue_size(q);
		if (q->start > 0) {
			memmove(q->data, q->data + q->start, used);
			q->start = 0;
			q->end = used;
		}
		if (q->capacity - used < size) {
			size_t capacity = q->capacity ? q->capacity : 4096;
			while (capacity - used < size)
				capacity *= 2;
			uint8_t *data = realloc(q->data, capacity);
			if (!data)
				abort();
			q->data = data;
			q->capacity = capacity;
		}
	}
	return q->data + q->end;
}

void queue_commit(struct queue *q, size_t size)
{
	q->end += size;
}

void queue_append(struct queue *q, const void *bytes, size_t size)
{
	if (size == 0)
		return;
	memcpy(queue_reserve(q, size), bytes, size);
	q->end += size;
}

void queue_consume(struct queue *q, size_t size)
{
	q->start += size;
	if (q->start == q->end)
		q->start = q->end = 0;
}

void queue_free(struct queue *q)
{
	free(q->data);
	*q = (struct queue){ 0 };
}

void put_u16(struct queue *q, uint16_t value)
{
	queue_append(q, &value, sizeof value);
}

void put_u32(struct queue *q, uint32_t value)
{
	queue_append(q, &value, sizeof value);
}

void put_u64(struct queue *q, uint64_t value)
{
	queue_append(q, &value, sizeof value);
}

void put_string(struct queue *q, const char *text)
{
	size_t length = strlen(text);
	put_u32(q, (uint32_t)length);
	queue_append(q, text, length);
}

static bool take(struct reader *r, void *target, size_t size)
{
	if (r->bad || reader_left(r) < size) {
		r->bad = true;
		memset(target, 0, size);
		return false;
	}
	memcpy(target, r->at, size);
	r->at += size;
	return true;
}

uint16_t get_u16(struct reader *r)
{
	uint16_t value;
	take(r, &value, sizeof value);
	return value;
}

uint32_t get_u32(struct reader *r)
{
	uint32_t value;
	take(r, &value, sizeof value);
	return value;
}

uint64_t get_u64(struct reader *r)
{
	uint64_t value;
	take(r, &value, sizeof value);
	return value;
}

char *get_string(struct reader *r)
{
	uint32_t length = get_u32(r);
	if (r->bad || reader_left(r) < length || memchr(r->at, 0, length)) {
		r->bad = true;
		return NULL;
	}
	char *text = must_alloc((size_t)length + 1);
	memcpy(text, r->at, length);
	r->at += length;
	return text;
}
