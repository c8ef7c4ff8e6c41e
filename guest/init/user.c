/* Accounts from /etc/passwd and /etc/group. A static binary cannot use NSS, and images rarely need more. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"

/* Splits a colon-separated line in place; the number of fields, at most `max`. */
static int split(char *line, char **fields, int max)
{
	int count = 0;
	line[strcspn(line, "\n")] = 0;
	while (count < max) {
		fields[count++] = line;
		line = strchr(line, ':');
		if (!line)
			break;
		*line++ = 0;
	}
	return count;
}

static bool is_number(const char *text, unsigned long *value)
{
	char *end;
	if (*text < '0' || *text > '9')
		return false;
	*value = strtoul(text, &end, 10);
	return *end == 0 && *value <= UINT32_MAX;
}

/* Fills in what /etc/passwd says of a name or a number; false when it says nothing. */
static bool find_user(const char *wanted, struct account *account)
{
	unsigned long number;
	bool numeric = is_number(wanted, &number);
	FILE *file = fopen("/etc/passwd", "re");
	char line[1024], *f[7];
	bool found = false;
	while (file && !found && fgets(line, sizeof line, file)) {
		unsigned long uid, gid;
		if (split(line, f, 7) < 6 || !is_number(f[2], &uid) || !is_number(f[3], &gid))
			continue;
		if (numeric ? uid != number : strcmp(f[0], wanted) != 0)
			continue;
		account->uid = (uid_t)uid;
		account->gid = (gid_t)gid;
		snprintf(account->name, sizeof account->name, "%s", f[0]);
		snprintf(account->home, sizeof account->home, "%s", f[5]);
		found = true;
	}
	if (file)
		fclose(file);
	return found;
}

static bool lists_member(char *members, const char *name)
{
	for (char *member = strtok(members, ","); member; member = strtok(NULL, ","))
		if (strcmp(member, name) == 0)
			return true;
	return false;
}

/* Reads /etc/group: the number of group `wanted` (if not NULL) and the groups that list the account. */
static bool find_groups(const char *wanted, struct account *account)
{
	unsigned long number = 0;
	bool found = wanted && is_number(wanted, &number);
	if (found)
		account->gid = (gid_t)number;
	FILE *file = fopen("/etc/group", "re");
	char line[4096], *f[4];
	while (file && fgets(line, sizeof line, file)) {
		unsigned long gid;
		int count = split(line, f, 4);
		if (count < 3 || !is_number(f[2], &gid))
			continue;
		if (wanted && !found && strcmp(f[0], wanted) == 0) {
			account->gid = (gid_t)gid;
			found = true;
		}
		if (!wanted && count == 4 && account->name[0] && account->group_count < 64 &&
		    lists_member(f[3], account->name))
			account->groups[account->group_count++] = (gid_t)gid;
	}
	if (file)
		fclose(file);
	return found;
}

int account_find(const char *user, struct account *account)
{
	char name[128];
	snprintf(name, sizeof name, "%s", *user ? user : "0");
	char *group = strchr(name, ':');
	if (group)
		*group++ = 0;
	*account = (struct account){ .home = "/" };
	if (!find_user(*name ? name : "0", account)) {
		unsigned long number;
		if (!is_number(name, &number))
			return EINVAL;
		account->uid = (uid_t)number; /* a bare number needs no entry */
		if (number == 0)
			snprintf(account->home, sizeof account->home, "/root");
	}
	if (group && *group)
		return find_groups(group, account) ? 0 : EINVAL;
	find_groups(NULL, account);
	return 0;
}
