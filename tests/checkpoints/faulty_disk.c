/* A disk that fails at the k-th call: preloaded before libc, so that every library's writes come through here.
 *
 * Counted are calls on paths below FAULT_ROOT that make, fill, flush or rename a file. Mode 1 fails the k-th call and
 * all later ones with ENOSPC, as a full disk does; mode 2 with EROFS, as one that was mounted read-only; mode 3 writes
 * half of the k-th call's bytes and says that it wrote all of them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int at = 0, mode = 0, calls = 0, fired = 0;

void fault_arm(int k, int how) { at = k; mode = how; calls = 0; fired = 0; }
int fault_fired(void) { return fired; }

static int below(const char *path) {
    const char *root = getenv("FAULT_ROOT");
    return mode && root && path && strncmp(path, root, strlen(root)) == 0;
}

static int below_fd(int fd) {
    char link[64], path[4096];
    if (!mode) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return below(path);
}

/* Whether this call fails; `lies` is set where it is to write half. */
static int fails(int *lies) {
    calls++;
    *lies = mode == 3 && calls == at;
    if (*lies) fired = 1;
    if (mode == 3 || calls < at) return 0;
    fired = 1;
    errno = mode == 1 ? ENOSPC : EROFS;
    return 1;
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(ssize_t, "write", int, const void *, size_t);
    int lies = 0;
    if (below_fd(fd)) {
        if (fails(&lies)) return -1;
        if (lies) { real(fd, bytes, count / 2); return (ssize_t)count; }
    }
    return real(fd, bytes, count);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    int lies = 0;
    if (below_fd(fd) && fails(&lies)) return -1;
    return real(fd, parts, count);
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    int lies = 0;
    if (below_fd(fd) && fails(&lies)) return -1;
    return real(fd);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    int lies = 0;
    if (below(from) && fails(&lies)) return -1;
    return real(from, to);
}

int mkdir(const char *path, mode_t bits) {
    REAL(int, "mkdir", const char *, mode_t);
    int lies = 0;
    if (below(path) && fails(&lies)) return -1;
    return real(path, bits);
}

static int opening(const char *name, int folder, const char *path, int flags, int bits) {
    int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, name);
    int lies = 0;
    if ((flags & (O_WRONLY | O_RDWR)) && below(path) && fails(&lies)) return -1;
    return real(folder, path, flags, bits);
}

#define BITS va_list more; va_start(more, flags); int bits = flags & O_CREAT ? va_arg(more, int) : 0; va_end(more)
int open(const char *path, int flags, ...) { BITS; return opening("openat", AT_FDCWD, path, flags, bits); }
int open64(const char *path, int flags, ...) { BITS; return opening("openat64", AT_FDCWD, path, flags, bits); }
int openat(int folder, const char *path, int flags, ...) { BITS; return opening("openat", folder, path, flags, bits); }
int openat64(int folder, const char *path, int flags, ...) { BITS; return opening("openat64", folder, path, flags, bits); }
