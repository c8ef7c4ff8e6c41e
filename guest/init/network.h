/* The guest's network identity, by ioctls. */
#ifndef VITRINE_NETWORK_H
#define VITRINE_NETWORK_H

/* What the host says; empty strings leave a thing alone. Addresses are "a.b.c.d/len" and "h:h::h/len". */
struct identity {
	char *hostname, *address4, *gateway4, *address6, *gateway6, *resolver, *mac;
};

int bring_up(const char *interface);
int apply_identity(const struct identity *identity);

#endif
