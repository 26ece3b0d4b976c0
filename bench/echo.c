/* What answering costs with nothing behind: epoll_wait, recv, send, and as little as possible
 * between them. No gateway can take less of its core than this, for it has these calls to make, and
 * its servers to ask. Understands GET and SET of the benchmark's keys and makes its values up.
 *
 *   echo PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 512, CONNECTIONS = 4096, READ = 64 << 10, CARRY = 4 << 10, VALUE = 100 };

static struct { size_t len; char bytes[CARRY]; } carry[CONNECTIONS];
static char in[CARRY + READ], out[EVENTS][READ], value[VALUE];
static struct { int fd; size_t len; } answers[EVENTS];

/* The bulk string at *at, its length, and *at behind it; NULL if it is not all there. */
static char *bulk(char **at, char *end, size_t *len) {
    char *line = memchr(*at, '\n', end - *at);
    if (!line) return NULL;
    *len = strtoul(*at + 1, NULL, 10);
    if (line + 1 + *len + 2 > end) return NULL;
    *at = line + 1 + *len + 2;
    return line + 1;
}

/* Answers whole requests; returns how many bytes they were, and the answers' length in *len. */
static size_t answer(char *begin, char *end, char *to, size_t *len) {
    char *at = begin, *done = begin;
    for (*len = 0; at < end && *len + VALUE + 32 < READ; done = at) {
        size_t size[3] = {0};
        char *word[3] = {0}, *line = memchr(at, '\n', end - at);
        int count = line ? atoi(at + 1) : 0, read = 0;
        for (at = line + 1; line && read < count && read < 3; read++)
            if (!(word[read] = bulk(&at, end, &size[read]))) return done - begin;
        if (!line) return done - begin;
        if (count == 2) {
            *len += sprintf(to + *len, "$%d\r\n", VALUE);
            memcpy(to + *len, value, VALUE);
            /* A value begins with its key. */
            memcpy(to + *len, word[1], size[1] < VALUE ? size[1] : VALUE);
            memcpy(to + *len + VALUE, "\r\n", 2);
            *len += VALUE + 2;
        } else {
            memcpy(to + *len, "+OK\r\n", 5);
            *len += 5;
        }
    }
    return done - begin;
}

int main(int argc, char **argv) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), epoll = epoll_create1(0), on = 1;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
    here.sin_port = htons(argc > 1 ? atoi(argv[1]) : 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (bind(listener, (void *)&here, sizeof here) || listen(listener, 4096)) return perror("echo"), 1;
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    for (int i = 0; i < VALUE; i++) value[i] = "cashewnut0123456789"[i % 19];
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS, -1), answered = 0;
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (fd >= CONNECTIONS) { close(fd); continue; }
                    event = (struct epoll_event){.events = EPOLLIN | EPOLLET, .data.fd = fd};
                    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
                    carry[fd].len = 0;
                }
                continue;
            }
            size_t kept = carry[fd].len;
            ssize_t got = recv(fd, in + kept, READ / 2, 0);
            if (got <= 0) { if (!got || errno != EAGAIN) close(fd); continue; }
            memcpy(in, carry[fd].bytes, kept);
            char *end = in + kept + got;
            size_t used = answer(in, end, out[answered], &answers[answered].len);
            carry[fd].len = kept + got - used;
            if (carry[fd].len > CARRY) { close(fd); continue; }
            memcpy(carry[fd].bytes, in + used, carry[fd].len);
            answers[answered].fd = fd;
            if (answers[answered].len) answered++;
        }
        for (int i = 0; i < answered; i++)
            send(answers[i].fd, out[i], answers[i].len, MSG_NOSIGNAL);
    }
}
