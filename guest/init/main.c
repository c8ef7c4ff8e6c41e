/*
 * The first process of every guest, and the agent that serves the host.
 *
 *   vitrine.root=/dev/vda      mount this and make it the root (absent: stay in the initramfs)
 *   vitrine.mode=agent         serve the host over vsock until told to stop
 *               =exec          run vitrine.exec="..." by /bin/sh, print its status, power off
 *               =echo          echo lines of the console until "poweroff" or "reboot"
 *               =shell         a shell on the console; power off when it ends
 *   Without vitrine.mode: exec when vitrine.exec is given, else a shell when there is one, else echo.
 *
 * Not as the first process: `init --agent-unix PATH` serves on a Unix socket, which is how the agent is tested.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "boot.h"
#include "network.h"

static char *const environment[] = { "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
				     "TERM=linux", NULL };
static const int typed_signals[] = { SIGINT, SIGQUIT, SIGTSTP };

static void exec_shell(const char *script)
{
	if (script)
		execle("/bin/sh", "sh", "-c", script, NULL, environment);
	else
		execle("/bin/sh", "sh", NULL, environment);
	fprintf(stderr, "vitrine-init: /bin/sh: %s\n", strerror(errno));
	_exit(127);
}

/* The exit status of a child, as a shell tells it. */
static int wait_for(pid_t pid)
{
	int status = 0;
	if (pid < 0)
		return 127;
	for (pid_t ended; (ended = wait(&status)) != pid;)
		if (ended < 0 && errno != EINTR)
			return 127;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/*
 * Runs the shell in a session of its own on the console. The session is led by a process that does nothing else: when a leader ends, the kernel
 * hangs its terminal up and throws away what was written and not sent yet, so the leader first waits until all of it is.
 */
static int run_shell(const char *script)
{
	pid_t leader = fork();
	if (leader == 0) {
		setsid();
		ioctl(0, TIOCSCTTY, 1);
		pid_t shell = fork();
		if (shell == 0)
			exec_shell(script);
		/* What is typed to end or stop the shell is not meant for its leader. */
		for (size_t i = 0; i < sizeof typed_signals / sizeof *typed_signals; i++)
			signal(typed_signals[i], SIG_IGN);
		int status = wait_for(shell);
		tcdrain(STDOUT_FILENO);
		_exit(status);
	}
	return wait_for(leader);
}

static int echo_console(void)
{
	char line[4096];
	while (fgets(line, sizeof line, stdin)) {
		if (!strcmp(line, "poweroff\n"))
			return 0;
		if (!strcmp(line, "reboot\n"))
			return 1;
		printf("echo: %s", line);
	}
	return 0;
}

static int serve(void)
{
	int listener = agent_listen_vsock();
	if (listener < 0) {
		fprintf(stderr, "vitrine-init: no vsock: %s\n", strerror(errno));
		return 0;
	}
	printf("vitrine-init: agent listening\n");
	load_later_modules();
	return agent_serve(listener);
}

static void use_console(void)
{
	int fd = open("/dev/console", O_RDWR);
	if (fd < 0)
		return;
	for (int i = 0; i < 3; i++)
		dup2(fd, i);
	if (fd > 2)
		close(fd);
	setvbuf(stdout, NULL, _IOLBF, 0);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--agent-unix")) {
		int listener = agent_listen_unix(argv[2]);
		return listener < 0 ? 1 : agent_serve(listener);
	}
	if (getpid() != 1) {
		fprintf(stderr, "usage: init --agent-unix PATH (anything else only as a guest's first process)\n");
		return 2;
	}
	mount_early();
	use_console();
	const char *root = boot_option("root"), *mode = boot_option("mode"), *script = boot_option("exec");
	int modules = load_modules(!mode || strcmp(mode, "agent"));
	if (!mode)
		mode = script ? "exec" : access("/bin/sh", X_OK) == 0 ? "shell" : "echo";
	if (root && !enter_root(root))
		stop_machine(0);
	bring_up("lo");
	struct timespec up;
	clock_gettime(CLOCK_BOOTTIME, &up);
	printf("vitrine-init: ready mode=%s cpus=%ld modules=%d uptime=%ld.%03ld\n", mode, sysconf(_SC_NPROCESSORS_ONLN),
	       modules, (long)up.tv_sec, up.tv_nsec / 1000000);
	int how = 0;
	if (!strcmp(mode, "agent"))
		how = serve();
	else if (!strcmp(mode, "exec"))
		printf("vitrine-init: exit status %d\n", run_shell(script ? script : "true"));
	else if (!strcmp(mode, "shell"))
		run_shell(NULL);
	else
		how = echo_console();
	fflush(stdout);
	tcdrain(STDOUT_FILENO);
	stop_machine(how);
}
