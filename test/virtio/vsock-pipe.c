/* A vsock stream on standard input and output, inside a guest: "vsock-pipe connect CID PORT", "vsock-pipe listen PORT",
   or "vsock-pipe echo PORT", which gives back what it gets, for each connection, until the guest ends. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <linux/vm_sockets.h>

static char buffer[65536];

static int write_all(int fd, const char *from, ssize_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, from, size);
        if (n <= 0)
            return -1;
        from += n;
        size -= n;
    }
    return 0;
}

/* Both directions until both have ended. */
static int relay(int socket)
{
    int input = 1, output = 1;
    while (input || output) {
        struct pollfd fds[2] = {{input ? 0 : -1, POLLIN, 0}, {output ? socket : -1, POLLIN, 0}};
        if (poll(fds, 2, -1) < 0)
            return 1;
        if (input && fds[0].revents) {
            ssize_t n = read(0, buffer, sizeof buffer);
            if (n <= 0) {
                input = 0;
                shutdown(socket, SHUT_WR);
            } else if (write_all(socket, buffer, n))
                return 2;
        }
        if (output && fds[1].revents) {
            ssize_t n = read(socket, buffer, sizeof buffer);
            if (n < 0)
                return 3;
            if (n == 0)
                output = 0;
            else if (write_all(1, buffer, n))
                return 4;
        }
    }
    return 0;
}

static int listen_on(unsigned port)
{
    struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = port};
    int fd = socket(AF_VSOCK, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (void *)&address, sizeof address) || listen(fd, 64)) {
        perror("listen");
        exit(5);
    }
    return fd;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "connect")) {
        struct sockaddr_vm address = {
            .svm_family = AF_VSOCK, .svm_cid = atoi(argv[2]), .svm_port = atoi(argv[3])};
        int fd = socket(AF_VSOCK, SOCK_STREAM, 0);
        if (connect(fd, (void *)&address, sizeof address)) {
            perror("connect");
            return 6;
        }
        return relay(fd);
    }
    if (argc != 3)
        return 64;
    int server = listen_on(atoi(argv[2]));
    if (!strcmp(argv[1], "listen"))
        return relay(accept(server, NULL, NULL));
    for (;;) {
        int fd = accept(server, NULL, NULL);
        ssize_t n;
        while ((n = read(fd, buffer, sizeof buffer)) > 0)
            if (write_all(fd, buffer, n))
                break;
        close(fd);
    }
}
